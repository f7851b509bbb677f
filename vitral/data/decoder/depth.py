"""Samples of more than 8 bits. Pillow keeps the upper byte of some and saturates others; here each goes to the nearest.

H rows, W columns, C samples a pixel.
"""

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile

from vitral.errors import DataError

Pixels = NDArray[np.uint8]
WIDE = (";16B", ";16L", ";16N")  # how Pillow's raw modes of 16 bits a sample end: big, little, native order
OTHER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


def eight_bits(values: NDArray[np.integer], highest: int) -> Pixels:
    """Samples of 0 to `highest` as 0 to 255, each to the nearest: round(v / 257) for 16 bits."""
    return ((values.astype(np.uint32) * 255 + highest // 2) // highest).astype(np.uint8)


def unit_floats(values: NDArray[np.floating], name: str) -> Pixels:
    """Samples of 0 to 1 as 0 to 255, each to the nearest; any other range has no one meaning, and is refused."""
    low, high = float(values.min()), float(values.max())
    if not (low >= 0.0 and high <= 1.0):  # not a number fails both
        what = f"expected floats from 0 to 1, found {low:g} to {high:g}"
        remedy = "scale them, or save it with 8 bits a sample"
        raise DataError(what, code="data.pixel_out_of_range", where=name, remedy=remedy)
    return np.rint(values * np.float64(255.0)).astype(np.uint8)


def raw_mode(image: ImageFile) -> str:
    """How the samples lie in the file, in Pillow's words; nothing where Pillow does not unpack them."""
    args = image.tile[0].args if image.tile else ""
    first = args[0] if isinstance(args, tuple) and args else args
    return first if isinstance(first, str) else ""


def is_wide(image: ImageFile) -> bool:
    """Whether this is colour of 16 bits a sample: Pillow has modes for such grey only."""
    return raw_mode(image).endswith(WIDE) and not image.mode.startswith("I")


def unpack_as(image: ImageFile, raw: str) -> None:
    """Have an image that is not loaded yet read its samples as if they lay in another way."""
    image.tile = [
        tile._replace(args=(raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw) for tile in image.tile
    ]


def wide_samples(load: Callable[[str], NDArray[np.uint8]], raw: str) -> NDArray[np.uint16]:
    """All 16 bits of each sample, (H, W, C), of a file that `load` reads in any raw mode.

    Pillow has no colour mode of 16 bits and keeps the first byte of each sample. Read in the other byte order, the
    same file gives the second.
    """
    if raw == "LA;16B":  # has no other order, but its four bytes a pixel can be read as four samples
        pairs = load("RGBA").astype(np.uint16)  # (H, W, 4)
        return pairs[..., 0::2] * np.uint16(256) + pairs[..., 1::2]  # (H, W, 2)
    high = load(raw).astype(np.uint16)  # (H, W, C)
    return high * np.uint16(256) + load(raw[:-1] + OTHER[raw[-1]])
