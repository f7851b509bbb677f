"""Targets, on patches of known color.  B images, M patches, C channels, P x Q pixels."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from tests.errors import raises
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize
from vitral.tasks.selfsupervised.masked_patches import Colors, Downsized, MeanColor, WholePatch, color_classes

SQUARE = Size(8, 8)


def solid(*colors: tuple[int, ...], size: Size = SQUARE) -> Tensor:
    """One image of patches of one color each, (1, M, C, P, Q), as bytes."""
    return torch.tensor(colors, dtype=torch.uint8)[None, :, :, None, None].expand(-1, -1, -1, *size)


@pytest.mark.parametrize(
    ("color", "number"),
    [
        ((0, 0, 0), 0),
        ((255, 255, 255), 511),
        ((31, 31, 31), 0),
        ((32, 0, 0), 64),
        ((0, 32, 0), 8),
        ((0, 0, 32), 1),
        ((0, 0, 63), 1),
        ((0, 0, 64), 2),
        ((255, 0, 40), 7 * 64 + 1),
        ((127, 128, 160), 3 * 64 + 4 * 8 + 5),
        ((191, 192, 223), 5 * 64 + 6 * 8 + 6),
        ((224, 223, 224), 7 * 64 + 6 * 8 + 7),
    ],
)
@pytest.mark.parametrize("scaling", [CENTERED, IMAGENET], ids=["centered", "imagenet"])
@pytest.mark.parametrize("size", [Size(8, 8), Size(14, 7), Size(1, 1)], ids=str)
def test_a_solid_patch_has_the_number_of_its_color(
    color: tuple[int, ...], number: int, scaling: Normalize, size: Size
) -> None:
    pixels = scaling.restore(scaling.apply(solid(color, size=size)[0])[None])
    assert color_classes(pixels, 1).tolist() == [[[number]]]


def test_all_512_colors_are_reached_and_differ() -> None:
    colors = [(r * 32 + 5, g * 32 + 17, b * 32 + 31) for r in range(8) for g in range(8) for b in range(8)]
    assert color_classes(solid(*colors).float(), 1).flatten().tolist() == list(range(512))


def test_every_byte_keeps_its_three_highest_bits() -> None:
    gray = solid(*((byte,) for byte in range(256)))
    assert color_classes(gray.float(), 1).flatten().tolist() == [byte >> 5 for byte in range(256)]


def test_a_mean_just_below_a_level_is_below_it() -> None:
    patch = torch.full((1, 1, 1, 14, 14), 32.0)
    assert color_classes(patch, 1).item() == 1
    patch[..., 5, 5] = 31
    assert color_classes(patch, 1).item() == 0
    patch[..., 7, 7] = 33
    assert color_classes(patch, 1).item() == 1


@pytest.mark.parametrize("size", [Size(4, 4), Size(8, 12), Size(14, 14), Size(7, 5)], ids=str)
def test_a_patch_is_downsized_by_means_of_its_parts(size: Size) -> None:
    bytes_ = np.random.default_rng(0).integers(0, 256, (2, 3, 3, *size))
    found = color_classes(torch.from_numpy(bytes_).float(), 4)
    assert found.shape == (2, 3, 16)

    def part(length: int, place: int) -> slice:
        return slice(place * length // 4, -((place + 1) * -length // 4))

    for place in range(16):
        rows, columns = part(size.height, place // 4), part(size.width, place % 4)
        cell = bytes_[:, :, :, rows, columns]
        r, g, b = np.moveaxis(cell.sum(axis=(3, 4)) // (32 * cell[0, 0, 0].size), 2, 0)
        assert found[:, :, place].tolist() == (64 * r + 8 * g + b).tolist()


def test_a_downsized_patch_tells_its_sixteen_parts_row_by_row() -> None:
    quarters = torch.arange(16).view(4, 4) * 16  # bytes 0 to 240: levels 0, 0, 1, 1, ...
    patch = quarters.repeat_interleave(2, 0).repeat_interleave(2, 1).float()[None, None, None]
    assert color_classes(patch, 4).flatten().tolist() == [place // 2 for place in range(16)]


@pytest.mark.parametrize(
    ("target", "channels", "expected"),
    [
        (MeanColor(), 3, 512),
        (MeanColor(), 1, 8),
        (Downsized(), 3, 16 * 512),
        (Downsized(), 1, 128),
        (WholePatch(), 3, 768),
    ],
)
def test_numbers_needed_to_tell_a_patch(
    target: MeanColor | Downsized | WholePatch, channels: int, expected: int
) -> None:
    assert target.out_features(channels, Size(16, 16)) == expected


@pytest.mark.parametrize("target", [MeanColor(), Downsized()])
def test_a_sure_and_right_prediction_costs_nothing_and_another_costs_its_doubt(target: Colors) -> None:
    patches = CENTERED.apply(torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)).view(2, 3, 3, 8, 8)
    colors = color_classes(CENTERED.restore(patches), target.side)
    sure = F.one_hot(colors, 512).float().flatten(2) * 100
    judged = target.compute_loss(sure, patches, CENTERED)
    assert_close(judged.losses, torch.zeros(2))
    assert judged.metrics["accuracy"].tolist() == [1, 1]
    unsure = target.compute_loss(torch.zeros_like(sure), patches, CENTERED)
    assert_close(unsure.losses, torch.full((2,), 512.0).log())
    half = sure.clone()
    half[1] = half[1].roll(1, dims=-1)
    assert target.compute_loss(half, patches, CENTERED).metrics["accuracy"].tolist() == [1, 0]


def test_the_whole_patch_is_told_by_its_mean_squared_error() -> None:
    patches = torch.rand(2, 3, 3, 8, 4)
    predictions = patches.flatten(2) + torch.tensor([0.1, 0.5])[:, None, None]
    judged = WholePatch().compute_loss(predictions, patches, CENTERED)
    assert_close(judged.losses, torch.tensor([0.01, 0.25]))
    assert judged.metrics == {}


@pytest.mark.parametrize(
    ("target", "channels", "patch", "values"),
    [
        (MeanColor(), 5, Size(8, 8), (5, "target=whole_patch")),
        (Downsized(), 3, Size(8, 3), ("8x3", "4x4", "target=mean_color")),
    ],
)
def test_patches_without_such_colors_are_refused(
    target: Colors, channels: int, patch: Size, values: tuple[object, ...]
) -> None:
    with raises("config.unsupported", *values) as caught:
        target.check(channels, patch)
    assert caught.value.where == "target"
