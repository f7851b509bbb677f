"""Many pictures at once give the bits of each alone, which torch resizes."""

import numpy as np
import pytest

from tests.data.pictures import noise
from vitral.core.config import Size
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import Box, CropBatch, CropPlan, Filter
from vitral.data.transforms.resize import crop_and_resize, crop_and_resize_batch, resize_matrices

WHOLE = Size(28, 33)


def pictures(channels: int) -> Pixels:
    return np.stack([noise(*WHOLE, channels, seed=seed).astype(np.uint8) for seed in range(4)])


def every_length() -> CropBatch:
    """A part of each height and of each width, at either end and in the middle, every other one flip."""
    heights = [(top, 3, height, 20) for height in range(1, 29) for top in {0, (28 - height) // 2, 28 - height}]
    widths = [(2, left, 9, width) for width in range(1, 34) for left in {0, (33 - width) // 2, 33 - width}]
    boxes = np.array(heights + widths)
    return CropBatch(boxes, np.arange(len(boxes)) % 2 == 1)


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("image", [WHOLE, Size(32, 32), Size(7, 5), Size(60, 28)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_bits_are_those_of_every_picture_alone(how: Filter, image: Size, channels: int) -> None:
    images, crops = pictures(channels), every_length()
    rows = np.arange(len(crops.boxes)) % len(images)
    found = crop_and_resize_batch(images, rows, crops, image, how)
    assert found.shape == (len(rows), channels, *image)
    for row, box, flip, seen in zip(rows, crops.boxes, crops.flips, found, strict=True):
        plan = CropPlan(Box(*box.tolist()), image, Box(0, 0, *image), bool(flip), how)
        assert np.array_equal(seen.permute(1, 2, 0).numpy(), crop_and_resize(images[row], WHOLE, plan))


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("image", [WHOLE, Size(20, 16)], ids=str)
def test_parts_of_the_very_size_are_shown_as_they_are(how: Filter, image: Size) -> None:
    images = pictures(3)
    boxes = np.array([(shift, shift, *image) for shift in range(1 if image == WHOLE else 5)])
    rows = np.arange(len(boxes)) % len(images)
    found = crop_and_resize_batch(images, rows, CropBatch(boxes, np.zeros(len(boxes), dtype=np.bool_)), image, how)
    for row, box, seen in zip(rows, boxes, found, strict=True):
        plan = CropPlan(Box(*box.tolist()), image, Box(0, 0, *image), False, how)
        assert np.array_equal(seen.permute(1, 2, 0).numpy(), crop_and_resize(images[row], WHOLE, plan))


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("length", [4, 28, 200])
def test_the_weights_are_whole_numbers_that_sums_of_levels_keep_exact(how: Filter, length: int) -> None:
    weights, units = resize_matrices(64, length, how)
    assert (weights == weights.round()).all()
    largest = 2.0 ** (24 if weights.dtype.itemsize == 4 else 53)
    assert (255 * weights.abs().sum(dim=-1)).max() < largest
    assert (weights.sum(dim=-1) * units[..., 0, 0])[1:].sub(1).abs().max() < 1e-3
