"""What has no clear meaning as an image is refused, with what was found."""

import struct

import numpy as np
import pytest

from tests.data.pictures import COLUMNS, ROWS, Array, noise, tiff
from vitral.data.decoder.decode import FULL, decode
from vitral.data.decoder.header import Decoding
from vitral.errors import DataError

WORDS = noise(ROWS, COLUMNS, highest=70_000)
UNCLEAR = {
    "int32": (tiff(WORDS.astype(np.int32), 1), f"mode I, from {WORDS.min()} to {WORDS.max()}"),
    "int32-of-few-levels": (tiff((WORDS % 256).astype(np.int32), 1), "mode I, from 1 to 255"),
    "int16": (tiff((WORDS // 2 - 20_000).astype(np.int16), 1), "mode I, from -"),
    "float-of-255": (tiff((WORDS % 256).astype(np.float32), 1), "expected floats from 0 to 1, found 1 to 255"),
    "float-nan": (tiff(np.full((ROWS, COLUMNS), np.nan, np.float32), 1), "found nan to nan"),
    "lab": (tiff(noise(ROWS, COLUMNS, 3).astype(np.uint8), 8), "mode LAB"),
    "premultiplied": (tiff(noise(ROWS, COLUMNS, 4).astype(np.uint16), 2, t338=[1]), "premultiplied alpha"),
    "planes": (tiff(noise(ROWS, COLUMNS, 3).astype(np.uint16), 2, t284=[2]), "separate planes"),
    "planes-zipped": (tiff(noise(ROWS, COLUMNS, 3).astype(np.uint16), 2, "<", True, t284=[2]), "separate planes"),
    "float-colour": (tiff(noise(ROWS, COLUMNS, 3).astype(np.float32), 2), "not a readable TIFF: unknown pixel mode"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_pixels_without_one_meaning_are_refused(name: str) -> None:
    data, found = UNCLEAR[name]
    with pytest.raises(DataError) as caught:
        decode(data, f"{name}.tif", Decoding(), FULL)
    assert found in caught.value.what
    assert caught.value.where == f"{name}.tif"
    assert "save it" in caught.value.remedy


def packed(values: Array) -> bytes:
    """Two samples of 12 bits in three bytes."""
    first, second = values.reshape(-1, 2).T
    return np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=-1).astype(np.uint8).tobytes()


def test_grey_of_12_bits_reaches_white() -> None:
    values = noise(ROWS, COLUMNS, highest=4095)
    body = packed(values)
    data = tiff(np.zeros((ROWS, COLUMNS), np.uint16), 1, t258=[12])[: -2 * ROWS * COLUMNS] + body
    data = data.replace(struct.pack("<HHII", 279, 4, 1, 2 * ROWS * COLUMNS), struct.pack("<HHII", 279, 4, 1, len(body)))
    pixels = decode(data, "a.tif", Decoding(channels=1), FULL)
    assert (pixels[..., 0] == np.rint(values * 255 / 4095)).all()


def test_a_premultiplied_grey_is_divided_by_its_alpha() -> None:
    alpha = noise(ROWS, COLUMNS).astype(np.uint8)
    stored = np.dstack([alpha // 2, alpha])  # grey of one half under any alpha
    pixels = decode(tiff(stored, 1, t338=[1]), "a.tif", Decoding(background=(0, 0, 0)), FULL)
    assert np.abs(pixels - (alpha / 2)[..., None]).max() <= 1.5
