"""Resizing against Pillow, which defines what antialiased means."""

from io import BytesIO
from itertools import product

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, noise
from vitral.core.config import Size
from vitral.data.decoding.decode import decode
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import Box, CropPlan, Filter, PaddingMode
from vitral.data.transforms.preprocessing import decode_and_crop
from vitral.data.transforms.resize import crop_and_resize, resize, resize_with_numpy

PHOTO = np.array(Image.fromarray(noise(30, 40, 3).astype(np.uint8)).resize((500, 375), Image.Resampling.BICUBIC))
BY_PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FILTERS: tuple[Filter, ...] = ("bilinear", "bicubic")


@pytest.mark.parametrize("size", [Size(224, 224), Size(32, 48), Size(7, 1), Size(400, 600), Size(375, 100)])
@pytest.mark.parametrize("how", FILTERS)
def test_the_result_is_pillows_to_a_level(how: Filter, size: Size) -> None:
    expected = np.asarray(Image.fromarray(PHOTO).resize((size.width, size.height), BY_PILLOW[how]))
    difference = np.abs(resize(PHOTO, size, how).astype(int) - expected)
    assert difference.max() <= (2 if how == "bicubic" else 1)  # torch's weights have fewer bits, and bicubic's add up
    assert difference.mean() < 0.01


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize("how", FILTERS)
def test_every_channel_is_resized_as_if_alone(how: Filter, channels: int) -> None:
    many = noise(50, 70, channels).astype(np.uint8)
    together = resize(many, Size(20, 30), how)
    assert together.shape == (20, 30, channels)
    for channel in range(channels):
        alone = np.asarray(Image.fromarray(many[..., channel]).resize((30, 20), BY_PILLOW[how]))
        assert np.abs(together[..., channel].astype(int) - alone).max() <= 1


@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize("flip", [False, True])
def test_a_window_that_reaches_out_of_the_image_shows_its_padding(mode: PaddingMode, flip: bool) -> None:
    pixels = noise(6, 8, 3, seed=1).astype(np.uint8)
    padded = np.pad(pixels, ((3, 3), (3, 3), (0, 0)), mode=mode)
    for top, left in product(range(-3, 4), repeat=2):
        plan = CropPlan(Box(0, 0, 6, 8), Size(6, 8), Box(top, left, 6, 8), flip, "bilinear", mode)
        expected = padded[top + 3 : top + 9, left + 3 : left + 11]
        assert np.array_equal(crop_and_resize(pixels, Size(6, 8), plan), expected[:, ::-1] if flip else expected)


def test_a_crop_is_a_part_resized_cut_and_mirrored() -> None:
    plan = CropPlan(Box(10, 20, 200, 300), Size(50, 60), Box(5, 6, 40, 30), True, "bilinear")
    part = Image.fromarray(PHOTO[10:210, 20:320]).resize((60, 50), Image.Resampling.BILINEAR)
    expected = np.asarray(part)[5:45, 6:36][:, ::-1]
    assert np.abs(crop_and_resize(PHOTO, Size(375, 500), plan).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("box", [Box(0, 0, 1200, 1600), Box(160, 240, 800, 720), Box(8, 400, 600, 640)])
@pytest.mark.parametrize("how", FILTERS)
def test_a_reduced_jpeg_shows_what_the_whole_one_does(how: Filter, box: Box) -> None:
    photo = Image.fromarray(PHOTO).resize((1600, 1200), Image.Resampling.BICUBIC)
    data = encoded(photo, "JPEG", quality=92)
    plan = CropPlan(box, Size(128, 128), Box(0, 0, 128, 128), False, how)
    whole, need = Size(1200, 1600), plan.min_size(Size(1200, 1600))
    reduced = decode(data, "photo.jpg", Decoding(), need)
    assert len(reduced) in {300, 150}
    part = (box.left, box.top, box.left + box.width, box.top + box.height)
    expected = np.asarray(Image.open(BytesIO(data)).resize((128, 128), BY_PILLOW[how], box=part))
    assert np.abs(crop_and_resize(reduced, whole, plan).astype(int) - expected).mean() < 2


class Ledger:
    """A picture that keeps count of how it is decoded."""

    size = Size(375, 500)

    def __init__(self) -> None:
        self.needs: list[Size] = []

    def pixels(self, need: Size) -> np.ndarray:
        self.needs.append(need)
        return PHOTO


def test_an_image_is_decoded_once_at_the_smallest_sufficient_size() -> None:
    picture = Ledger()
    plan = CropPlan(Box(0, 0, 50, 500), Size(20, 10), Box(0, 0, 20, 10), False, "bilinear")
    assert decode_and_crop(picture, plan).shape == (20, 10, 3)
    assert picture.needs == [Size(150, 10)]


def test_a_large_image_is_resized_in_bands_to_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = noise(90, 70, 3).astype(np.uint8)
    whole = resize_with_numpy(pixels, Size(30, 40), "bicubic")
    monkeypatch.setattr("vitral.data.decoding.pixels.BAND_PIXELS", 500)
    np.testing.assert_array_equal(resize_with_numpy(pixels, Size(30, 40), "bicubic"), whole)
