"""Thumbnails: true to the picture, small, whole in themselves."""

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.doctor.albums import fill, photo, scene
from tests.data.pictures import noise, npy
from vitral.data.datasets.files import FileStore
from vitral.data.samples import Item, Samples
from vitral.data.thumbnails import thumbnail_url, to_rgb_image


def shown(folder: Path, content: bytes) -> Image.Image:
    fill(folder, {"it": content})
    item = Item("it", 0, "train")
    address = thumbnail_url(Samples("", ("a", "b"), (item,), FileStore(str(folder))), item)
    kind, _, data = address.removeprefix("data:image/").partition(";base64,")
    image = Image.open(BytesIO(base64.b64decode(data)))
    assert image.format == kind.upper()
    return image


def test_a_thumbnail_is_the_picture_made_small(tmp_path: Path) -> None:
    image = shown(tmp_path, photo(3))
    assert image.size == (128, 96)
    truth = np.asarray(scene(3).resize((128, 96), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(np.asarray(image) - truth).mean() < 6


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_small_picture_of_any_channels_keeps_its_pixels(tmp_path: Path, channels: int) -> None:
    pixels = noise(28, 20, channels).astype(np.uint8)
    truth = pixels if channels == 3 else pixels.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    assert np.array_equal(np.asarray(shown(tmp_path, npy(pixels))), truth)


def test_other_channels_are_seen_as_their_mean() -> None:
    pixels = noise(9, 8, 5).astype(np.uint8)
    shown = np.asarray(to_rgb_image(pixels))
    assert shown.shape == (9, 8, 3)
    assert np.abs(shown - pixels.mean(axis=2, keepdims=True)).max() < 1
    assert np.array_equal(np.asarray(to_rgb_image(pixels[..., :3])), pixels[..., :3])
