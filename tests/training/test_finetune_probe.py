"""A look at the training images before anything is tuned."""

import numpy as np
import torch
from torch import Tensor

import vitral
from vitral.models.base import Model
from vitral.training.finetune import TrainImages, extract_features, fit_head
from vitral.training.loop import Microbatch


def portions(images: int) -> list[Microbatch]:
    """Two portions of a batch, the second of which has no image."""
    pixels = torch.randn(images, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    rng = np.random.default_rng(0)
    return [
        Microbatch(pixels[rows], torch.arange(images)[rows], 1.0, rng, 0)
        for rows in (slice(0, images), slice(images, None))
    ]


def look(first: bool, told: list[Tensor]) -> TrainImages:
    """The look of one of two processes; the other one adds what is told."""

    def gather(rows: Tensor) -> Tensor:
        return torch.cat([rows, told.pop(0)]) if first else torch.cat([told.pop(0), rows])

    return TrainImages(
        lambda: [portions(2), portions(1)], gather, first, lambda features, labels: (features, labels.float())
    )


def small() -> Model:
    torch.manual_seed(0)
    return vitral.create_model(
        "Ti/16",
        settings={"image_size": 16, "stem.patch": 8, "width": 16, "depth": 2, "mixer.heads": 2, "tokens.dropout": 0.5},
    )


def test_all_images_of_all_processes_are_seen_at_rest() -> None:
    model = small().train()
    features, labels = extract_features(model, look(True, [torch.full((1, 16), 9.0), torch.tensor([5])]))
    assert labels.tolist() == [0, 1, 0, 5]
    with torch.no_grad():
        truth = small().eval().forward_pooled(portions(2)[0].images)
    torch.testing.assert_close(features[:2], truth)
    assert features[3].eq(9).all()
    assert model.training
    assert not features.requires_grad


def test_the_first_process_fits_for_all() -> None:
    features, labels = torch.randn(3, 16), torch.tensor([0, 1, 2])
    told = [torch.ones(4, 16), torch.ones(4)]
    weight, bias = fit_head(features, labels, look(False, told))
    assert weight.eq(1).all()
    assert (weight.shape, bias.shape) == ((4, 16), (4,))
    weight, _ = fit_head(features, labels, look(True, [torch.zeros(0, 16), torch.zeros(0)]))
    assert torch.equal(weight, features)
