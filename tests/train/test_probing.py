"""The head that is fitted before anything is tuned, against Newton's method on the same cost."""

import numpy as np
import pytest
import torch
from torch import Tensor

import vitral
from vitral.model.contract import Model
from vitral.tasks.loss import LossConfig, Sigmoid, Softmax
from vitral.train.feed import Portion
from vitral.train.probing import PENALTY, Look, fit_head, fitted, seen

CLASSES = 3


def data(images: int = 60, width: int = 4) -> tuple[Tensor, Tensor]:
    """Features of three classes, which overlap, at an odd scale and place."""
    throws = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % CLASSES
    centres = torch.randn(CLASSES, width, generator=throws)
    features = centres[labels] + torch.randn(images, width, generator=throws)
    return features * torch.tensor([1.0, 10.0, 0.1, 3.0])[:width] + 5.0, labels


def newton(features: Tensor, labels: Tensor, loss: LossConfig) -> Tensor:
    """The logits of the training images under the weights of least cost."""
    x = features.double()
    x = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    targets = torch.nn.functional.one_hot(labels, CLASSES).double()
    size = CLASSES * x.shape[1]

    def cost(values: Tensor) -> Tensor:
        weight, bias = values[:size].view(CLASSES, -1), values[size:]
        return loss.losses(x @ weight.mT + bias, targets).sum() + PENALTY / 2 * weight.square().sum()

    values = torch.zeros(size + CLASSES, dtype=torch.float64)
    for _ in range(30):
        bend = torch.autograd.functional.hessian(cost, values)
        (slope,) = torch.autograd.grad(cost(values.requires_grad_()), values)
        values = values.detach() - torch.linalg.pinv(bend) @ slope
    return x @ values[:size].view(CLASSES, -1).mT + values[size:]


@pytest.mark.parametrize("loss", [Softmax(), Sigmoid()])
def test_the_fit_has_the_least_cost(loss: LossConfig) -> None:
    features, labels = data()
    weight, bias = fit_head(features, labels, CLASSES, loss)
    assert (weight.shape, bias.shape) == ((CLASSES, 4), (CLASSES,))
    truth = newton(features, labels, loss)
    logits = (features @ weight.mT + bias).double()
    if isinstance(loss, Softmax):  # which a constant for all classes does not change
        truth, logits = (each - each.mean(dim=1, keepdim=True) for each in (truth, logits))
    torch.testing.assert_close(logits, truth, atol=1e-4, rtol=0)


def test_the_fit_is_the_same_each_time() -> None:
    one, other = (fit_head(*data(), CLASSES, Softmax()) for _ in range(2))
    assert all(torch.equal(here, there) for here, there in zip(one, other, strict=True))


def test_a_feature_that_says_nothing_has_no_weight() -> None:
    features, labels = data()
    features[:, 1] = 7.0
    weight, bias = fit_head(features, labels, CLASSES, Softmax())
    assert weight[:, 1].abs().max() == 0
    assert weight.isfinite().all()
    assert bias.isfinite().all()


def test_a_class_without_images_is_the_last_to_be_answered() -> None:
    features, labels = data()
    some = labels < 2
    weight, bias = fit_head(features[some], labels[some], CLASSES, Softmax())
    assert (features[some] @ weight.mT + bias).argmin(dim=1).eq(2).all()


def portions(images: int) -> list[Portion]:
    """Two portions of a batch, the second of which has no image."""
    pixels = torch.randn(images, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    dice = np.random.default_rng(0)
    return [
        Portion(pixels[rows], torch.arange(images)[rows], 1.0, dice, 0)
        for rows in (slice(0, images), slice(images, None))
    ]


def look(first: bool, told: list[Tensor]) -> Look:
    """The look of one of two processes; the other one adds what is told."""

    def gather(rows: Tensor) -> Tensor:
        return torch.cat([rows, told.pop(0)]) if first else torch.cat([told.pop(0), rows])

    return Look(lambda: [portions(2), portions(1)], gather, first, lambda features, labels: (features, labels.float()))


def small() -> Model:
    torch.manual_seed(0)
    return vitral.build(
        "Ti/16", "image=16", "stem.patch=8", "width=16", "depth=2", "mixer.heads=2", "tokens.dropout=0.5"
    )


def test_all_images_of_all_processes_are_seen_at_rest() -> None:
    model = small().train()
    features, labels = seen(model, look(True, [torch.full((1, 16), 9.0), torch.tensor([5])]))
    assert labels.tolist() == [0, 1, 0, 5]
    with torch.no_grad():
        truth = small().eval().pooled(portions(2)[0].images)
    torch.testing.assert_close(features[:2], truth)
    assert features[3].eq(9).all()
    assert model.training
    assert not features.requires_grad


def test_the_first_process_fits_for_all() -> None:
    features, labels = torch.randn(3, 16), torch.tensor([0, 1, 2])
    told = [torch.ones(4, 16), torch.ones(4)]
    weight, bias = fitted(features, labels, look(False, told))
    assert weight.eq(1).all()
    assert (weight.shape, bias.shape) == ((4, 16), (4,))
    mine = fitted(features, labels, look(True, [torch.zeros(0, 16), torch.zeros(0)]))
    assert torch.equal(mine.weight, features)
