"""SimMIM hides units of patches and predicts their pixels as its authors do."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.variants import small
from vitral.core.config import Size, override
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Convolutions, OverlappingPatches, Patches, RelativeBias, Vit
from vitral.models.base import Grid
from vitral.models.init import TruncatedNormal
from vitral.tasks.selfsupervised.simmim import MaskedPixels, SimMim, draw_unit_masks


def built(model: Vit, **settings: object) -> MaskedPixels:
    task = SimMim(unit=Size(16, 16)).model_copy(update=settings).build(model.build(), 0, (), CENTERED)
    assert isinstance(task, MaskedPixels)
    return task


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_first_loss_is_that_of_predictions_that_know_nothing() -> None:
    """Pixels of variance 1 and outputs of variance 1/3, which torch's linear layer gives after a norm.

    The mean distance of the two is sqrt(2 / pi) * sqrt(1 + 1 / 3) = 0.921.
    """
    torch.manual_seed(0)
    task = built(small(width=192, init=TruncatedNormal()))
    loss = task(torch.randn(16, 3, 32, 48), torch.zeros(16), rng()).loss
    assert loss.item() == pytest.approx((2 / np.pi * 4 / 3) ** 0.5, abs=0.03)


def test_a_step_equals_the_formula_of_the_authors() -> None:
    """Oracle: brute force from the published code of microsoft/SimMIM (models/simmim.py), written in another way.

    A convolution of 1 x 1 and PixelShuffle predict the image, and the loss is a sum over pixels in the mask of the
    image. The encoder is this package's, which is compared with other libraries elsewhere; all weights get gradients.
    """
    torch.manual_seed(1)
    task = built(small(position=RelativeBias(shared=True))).double()
    with torch.no_grad():
        task.mask_token.normal_()
    images = torch.randn(4, 3, 32, 48, dtype=torch.float64)
    loss = task(images, torch.zeros(4), rng(3)).loss
    learning = {name: weight for name, weight in task.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(loss, list(learning.values()))
    expected = authors_loss(task, images, draw_unit_masks(rng(3), 4, Grid(2, 3), 4, Grid(4, 6)))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-8)
    for (name, _), found, wanted in zip(
        learning.items(), grads, torch.autograd.grad(expected, list(learning.values())), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8, msg=name)
        assert found.any() or name.endswith("heads.qkv.bias"), name


def authors_loss(task: MaskedPixels, images: Tensor, hidden: Tensor) -> Tensor:
    model = task.model
    layout, mask = model.layout(images), hidden.view(-1, 4, 6).to(images)  # (B, R, S)
    weight = mask.flatten(1).unsqueeze(-1)
    embedded = model.stem(images) * (1 - weight) + task.mask_token.expand(4, 24, -1) * weight
    tokens = model.encode(model.embed_patches(embedded, layout), layout, layout.length())[:, 1:]
    image = tokens.mT.reshape(4, -1, 4, 6)  # (B, D, R, S)
    kernel = task.predict.weight[:, :, None, None]
    predicted = F.pixel_shuffle(F.conv2d(image, kernel, task.predict.bias), 8)  # (B, C, H, W)
    pixels = mask.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, None]  # (B, 1, H, W)
    return (F.l1_loss(predicted, images, reduction="none") * pixels).sum() / (pixels.sum() + 1e-5) / 3


def test_whole_units_are_hidden_and_as_many_as_the_authors_hide() -> None:
    task = SimMim()
    assert task.units(Size(192, 192)) == Grid(6, 6)
    assert task.hidden_units(Grid(6, 6)) == 22
    masks = draw_unit_masks(rng(), 50, Grid(6, 6), 22, Grid(12, 12)).view(50, 6, 2, 6, 2)
    units = masks[:, :, 0, :, 0]
    assert torch.equal(masks, units[:, :, None, :, None].expand_as(masks))
    assert units.flatten(1).sum(dim=1).tolist() == [22] * 50
    assert (units.float().mean(dim=0) - 22 / 36).abs().max() < 0.35
    assert len({row.numpy().tobytes() for row in units}) == 50


def test_pixels_of_hidden_patches_leave_no_trace_in_what_is_predicted() -> None:
    torch.manual_seed(2)
    task, images = built(small()), torch.randn(2, 3, 32, 48)
    hidden, outputs, _, _ = task.predict_pixels(images, rng(1))
    pixels = hidden.view(2, 4, 6).repeat_interleave(8, 1).repeat_interleave(8, 2)[:, None]
    other = torch.where(pixels, torch.randn_like(images), images)
    assert torch.equal(task.predict_pixels(other, rng(1)).outputs, outputs)


def test_what_is_reconstructed_is_the_image_where_nothing_was_hidden() -> None:
    torch.manual_seed(3)
    task, images = built(small()).eval(), torch.rand(2, 3, 32, 48) * 2 - 1
    pictures = task.reconstruct(images)
    assert pictures is not None
    hidden = task.predict_pixels(images, rng()).hidden.view(2, 4, 6)
    pixels = hidden.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, None].expand_as(images)
    assert torch.equal(pictures.predictions[~pixels], pictures.images[~pixels])
    assert not torch.equal(pictures.predictions[pixels], pictures.images[pixels])
    assert (pictures.inputs[pixels] == 128).all()
    torch.testing.assert_close(pictures.images, CENTERED.restore(images))


@pytest.mark.parametrize(
    ("settings", "stem", "code"),
    [
        ({}, Convolutions(widths=(8, 12, 16)), "config.unsupported"),
        ({}, OverlappingPatches(patch=Size(12, 12), stride=Size(8, 8)), "config.unsupported"),
        ({}, Patches(patch=Size(7, 8), remainder="crop"), "config.indivisible"),
        ({"unit": Size(12, 12)}, Patches(patch=Size(8, 8)), "config.indivisible"),
        ({"unit": Size(32, 32)}, Patches(patch=Size(8, 8)), "config.indivisible"),
        ({"ratio": 0.9}, Patches(patch=Size(8, 8)), "config.conflict"),
    ],
)
def test_what_cannot_be_hidden_is_refused(settings: dict[str, object], stem: object, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SimMim(unit=Size(16, 16)).model_copy(update=settings).check(small(stem=stem))
    assert caught.value.code == code


def test_a_unit_is_chosen_by_its_size() -> None:
    assert override(SimMim(), ["unit=8"]).unit == Size(8, 8)
