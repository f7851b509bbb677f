"""What has no clear meaning as an image is refused, with what was found."""

import struct

import numpy as np
import pytest

from tests.data.pictures import COLUMNS, ROWS, Array, noise, tiff
from tests.errors import raises
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding

WORDS = noise(ROWS, COLUMNS, highest=70_000)
DEEP_COLOR = noise(ROWS, COLUMNS, 3).astype(np.uint16)
DEEP_ALPHA = noise(ROWS, COLUMNS, 4).astype(np.uint16)
RANGE = f"from {WORDS.min()} to {WORDS.max()}"
UNCLEAR: dict[str, tuple[bytes, str, str]] = {
    "int32": (tiff(WORDS.astype(np.int32), 1), "data.unsupported_image", f"mode I, {RANGE}"),
    "int32-of-few-levels": (tiff((WORDS % 256).astype(np.int32), 1), "data.unsupported_image", "mode I, from 1 to 255"),
    "int16": (tiff((WORDS // 2 - 20_000).astype(np.int16), 1), "data.unsupported_image", "mode I, from -"),
    "float-of-255": (tiff((WORDS % 256).astype(np.float32), 1), "data.pixel_out_of_range", "1 to 255"),
    "float-nan": (tiff(np.full((ROWS, COLUMNS), np.nan, np.float32), 1), "data.pixel_out_of_range", "nan to nan"),
    "lab": (tiff(noise(ROWS, COLUMNS, 3).astype(np.uint8), 8), "data.unsupported_image", "LAB"),
    "premultiplied": (tiff(DEEP_ALPHA, 2, t338=[1]), "data.unsupported_image", "premultiplied"),
    "planes": (tiff(DEEP_COLOR, 2, t284=[2]), "data.unsupported_image", "planes"),
    "planes-zipped": (tiff(DEEP_COLOR, 2, "<", True, t284=[2]), "data.unsupported_image", "planes"),
    "float-color": (tiff(noise(ROWS, COLUMNS, 3).astype(np.float32), 2), "data.corrupt_image", "TIFF"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_pixels_without_one_meaning_are_refused(name: str) -> None:
    data, code, found = UNCLEAR[name]
    with raises(code, found) as caught:
        decode(data, f"{name}.tif", Decoding(), FULL_SIZE)
    assert caught.value.where == f"{name}.tif"
    assert caught.value.hint


def packed(values: Array) -> bytes:
    """Two samples of 12 bits in three bytes."""
    first, second = values.reshape(-1, 2).T
    return np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=-1).astype(np.uint8).tobytes()


def test_gray_of_12_bits_reaches_white() -> None:
    values = noise(ROWS, COLUMNS, highest=4095)
    body = packed(values)
    data = tiff(np.zeros((ROWS, COLUMNS), np.uint16), 1, t258=[12])[: -2 * ROWS * COLUMNS] + body
    data = data.replace(struct.pack("<HHII", 279, 4, 1, 2 * ROWS * COLUMNS), struct.pack("<HHII", 279, 4, 1, len(body)))
    pixels = decode(data, "a.tif", Decoding(channels=1), FULL_SIZE)
    assert (pixels[..., 0] == np.rint(values * 255 / 4095)).all()


def test_a_premultiplied_gray_is_divided_by_its_alpha() -> None:
    alpha = noise(ROWS, COLUMNS).astype(np.uint8)
    stored = np.dstack([alpha // 2, alpha])  # gray of one half under any alpha
    pixels = decode(tiff(stored, 1, t338=[1]), "a.tif", Decoding(background=(0, 0, 0)), FULL_SIZE)
    assert np.abs(pixels - (alpha / 2)[..., None]).max() <= 1.5
