"""What masked patches look like: the input, what is asked for, and what is predicted."""

import pytest
import torch
from torch import Tensor

from tests.models.variants import small
from tests.tasks.selfsupervised.test_masked_patches import TARGETS, patch_of, pictures, rng, task
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import LinearHead
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.masked_patches import (
    GRAY,
    Downsized,
    MaskedPatches,
    MeanColor,
    TargetConfig,
    WholePatch,
    color_classes,
    color_patches,
)
from vitral.tasks.task import Reconstruction


def reconstruct(target: TargetConfig, images: Tensor) -> Reconstruction:
    found = task(small().build(), MaskedPatches(target=target)).eval().reconstruct(images)
    assert found is not None
    return found


@pytest.mark.parametrize("side", [1, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_colors_that_are_drawn_are_in_the_middle_of_their_class(side: int, channels: int) -> None:
    pixels = torch.randint(0, 256, (2, 5, channels, 8, 8)).float()
    drawn = color_patches(color_classes(pixels, side), channels, Size(8, 8))
    cell = 8 // side
    means = pixels.unfold(3, cell, cell).unfold(4, cell, cell).mean(dim=(5, 6))  # (2, 5, C, side, side)
    assert drawn.shape == pixels.shape
    assert ((drawn[..., ::cell, ::cell] - means).abs() <= 16).all()
    assert torch.equal(color_classes(drawn, side), color_classes(pixels, side))


@TARGETS
def test_only_corrupted_patches_are_changed(target: type[TargetConfig]) -> None:
    built = task(small().build(), MaskedPatches(target=target())).eval()
    images = pictures(small(), 2)
    found = built.reconstruct(images)
    assert found is not None
    corruption = built.corruption(2, 24, rng(), images.device)
    assert torch.equal(found.images, CENTERED.restore(images))
    corrupted = set(corruption.indices[0].tolist())
    for place in range(24):
        spot = (slice(None), slice(None), *patch_of(place))
        if place not in corrupted:
            for pictured in found[1:]:
                assert torch.equal(pictured[spot], found.images[spot])
        assert bool((found.inputs[spot] == GRAY).all()) == bool(corruption.masked[0, place])
    assert (found.predictions != found.images).any()
    assert found.predictions.min() >= 0
    assert found.predictions.max() <= 255


def test_the_target_of_whole_patches_is_the_image_and_colors_are_simpler() -> None:
    images = pictures(small(), 1)
    whole = reconstruct(WholePatch(), images)
    assert torch.equal(whole.targets, whole.images)
    spot = (0, 0, *patch_of(int(task(small().build()).eval().corruption(1, 24, rng(), images.device).indices[0, 0])))
    for target, levels in ((MeanColor(), 1), (Downsized(), 2)):  # random pixels: one mean, but several in 2 x 2 cells
        found = reconstruct(target, images)
        assert len(torch.unique(found.targets[spot])) >= levels
        assert (found.targets[spot] % 32 == 16).all()


def test_a_right_prediction_looks_like_its_target() -> None:
    built = task(small().build(), MaskedPatches(target=MeanColor())).eval()
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(1, 3, *small().image_size)
    with torch.no_grad():
        built.tell.weight.zero_()
        built.tell.bias.zero_()
        built.tell.bias[7 * 64] = 9.0  # the class of red
    found = built.reconstruct(CENTERED.apply(red.clone()))
    assert found is not None
    assert torch.equal(found.predictions, found.targets)
    assert sorted(torch.unique(found.targets).tolist()) == [0.0, 16.0, 240.0, 255.0]


def test_a_classifier_reconstructs_nothing() -> None:
    config = small(head=LinearHead(num_classes=2))
    built = Classify().build(config.build(), 2, (1, 1), CENTERED)
    assert built.reconstruct(pictures(config)) is None
