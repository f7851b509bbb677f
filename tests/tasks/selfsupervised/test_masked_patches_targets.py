"""Targets, on patches of known colour.  B images, M patches, C channels, P x Q pixels."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from tests.errors import raises
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTRED, IMAGENET, Scaling
from vitral.tasks.selfsupervised.masked_patches import Colours, Downsized, MeanColour, WholePatch, colour_classes

SQUARE = Size(8, 8)


def solid(*colours: tuple[int, ...], size: Size = SQUARE) -> Tensor:
    """One image of patches of one colour each, (1, M, C, P, Q), as bytes."""
    return torch.tensor(colours, dtype=torch.uint8)[None, :, :, None, None].expand(-1, -1, -1, *size)


@pytest.mark.parametrize(
    ("colour", "number"),
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
@pytest.mark.parametrize("scaling", [CENTRED, IMAGENET], ids=["centred", "imagenet"])
@pytest.mark.parametrize("size", [Size(8, 8), Size(14, 7), Size(1, 1)], ids=str)
def test_a_solid_patch_has_the_number_of_its_colour(
    colour: tuple[int, ...], number: int, scaling: Scaling, size: Size
) -> None:
    pixels = scaling.restore(scaling.apply(solid(colour, size=size)[0])[None])
    assert colour_classes(pixels, 1).tolist() == [[[number]]]


def test_all_512_colours_are_reached_and_differ() -> None:
    colours = [(r * 32 + 5, g * 32 + 17, b * 32 + 31) for r in range(8) for g in range(8) for b in range(8)]
    assert colour_classes(solid(*colours).float(), 1).flatten().tolist() == list(range(512))


def test_every_byte_keeps_its_three_highest_bits() -> None:
    grey = solid(*((byte,) for byte in range(256)))
    assert colour_classes(grey.float(), 1).flatten().tolist() == [byte >> 5 for byte in range(256)]


def test_a_mean_just_below_a_level_is_below_it() -> None:
    patch = torch.full((1, 1, 1, 14, 14), 32.0)
    assert colour_classes(patch, 1).item() == 1
    patch[..., 5, 5] = 31
    assert colour_classes(patch, 1).item() == 0
    patch[..., 7, 7] = 33
    assert colour_classes(patch, 1).item() == 1


@pytest.mark.parametrize("size", [Size(4, 4), Size(8, 12), Size(14, 14), Size(7, 5)], ids=str)
def test_a_patch_is_downsized_by_means_of_its_parts(size: Size) -> None:
    bytes_ = np.random.default_rng(0).integers(0, 256, (2, 3, 3, *size))
    found = colour_classes(torch.from_numpy(bytes_).float(), 4)
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
    assert colour_classes(patch, 4).flatten().tolist() == [place // 2 for place in range(16)]


@pytest.mark.parametrize(
    ("target", "channels", "expected"),
    [
        (MeanColour(), 3, 512),
        (MeanColour(), 1, 8),
        (Downsized(), 3, 16 * 512),
        (Downsized(), 1, 128),
        (WholePatch(), 3, 768),
    ],
)
def test_numbers_needed_to_tell_a_patch(
    target: MeanColour | Downsized | WholePatch, channels: int, expected: int
) -> None:
    assert target.outputs(channels, Size(16, 16)) == expected


@pytest.mark.parametrize("target", [MeanColour(), Downsized()])
def test_a_sure_and_right_prediction_costs_nothing_and_another_costs_its_doubt(target: Colours) -> None:
    patches = CENTRED.apply(torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)).view(2, 3, 3, 8, 8)
    colours = colour_classes(CENTRED.restore(patches), target.side)
    sure = F.one_hot(colours, 512).float().flatten(2) * 100
    judged = target.judge(sure, patches, CENTRED)
    assert_close(judged.losses, torch.zeros(2))
    assert judged.metrics["accuracy"].tolist() == [1, 1]
    unsure = target.judge(torch.zeros_like(sure), patches, CENTRED)
    assert_close(unsure.losses, torch.full((2,), 512.0).log())
    half = sure.clone()
    half[1] = half[1].roll(1, dims=-1)
    assert target.judge(half, patches, CENTRED).metrics["accuracy"].tolist() == [1, 0]


def test_the_whole_patch_is_told_by_its_mean_squared_error() -> None:
    patches = torch.rand(2, 3, 3, 8, 4)
    predictions = patches.flatten(2) + torch.tensor([0.1, 0.5])[:, None, None]
    judged = WholePatch().judge(predictions, patches, CENTRED)
    assert_close(judged.losses, torch.tensor([0.01, 0.25]))
    assert judged.metrics == {}


@pytest.mark.parametrize(
    ("target", "channels", "patch", "values"),
    [
        (MeanColour(), 5, Size(8, 8), (5, "target=whole_patch")),
        (Downsized(), 3, Size(8, 3), ("8x3", "4x4", "target=mean_colour")),
    ],
)
def test_patches_without_such_colours_are_refused(
    target: Colours, channels: int, patch: Size, values: tuple[object, ...]
) -> None:
    with raises("config.unsupported", *values) as caught:
        target.check(channels, patch)
    assert caught.value.where == "target"
