"""Pixels of more than 8 bits to uint8, and .npy files as images.  H rows, W columns, C channels.

Pillow keeps the upper byte of some 16-bit samples and saturates others; here each is rounded. Pickles are refused.
"""

import os
import sys
from collections.abc import Iterator
from io import BytesIO
from threading import Lock
from tokenize import TokenError
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile

from vitral.core.errors import DataError

Pixels = NDArray[np.uint8]
WIDE = (";16B", ";16L", ";16N")  # how Pillow's raw modes of 16 bits per sample end: big, little, native order


def to_8bit(values: NDArray[np.integer], highest: int) -> Pixels:
    """Samples of 0 to `highest` as 0 to 255, each to the nearest: round(v / 257) for 16 bits."""
    return ((values.astype(np.uint32) * 255 + highest // 2) // highest).astype(np.uint8)


def floats_to_8bit(values: NDArray[np.floating], name: str) -> Pixels:
    """Samples of 0 to 1 as 0 to 255, each to the nearest; any other range is ambiguous and refused."""
    low, high = float(values.min()), float(values.max())
    if not (low >= 0.0 and high <= 1.0):  # not a number fails both
        message = f"expected floats from 0 to 1, found {low:g} to {high:g}"
        hint = "scale them, or save it with 8 bits per sample"
        raise DataError(message, code="data.pixel_out_of_range", where=name, hint=hint)
    levels = np.empty(values.shape, dtype=np.uint8)
    for rows in bands(len(values), values[0].size):
        levels[rows] = np.rint(values[rows].astype(np.float64) * 255)
    return levels


BAND_PIXELS = 65_536  # that are converted at a time, in a cache: no second copy of a large image is made


def bands(height: int, width: int) -> Iterator[slice]:
    """The rows of an image, some at a time."""
    rows = max(1, BAND_PIXELS // width)
    return (slice(top, min(top + rows, height)) for top in range(0, height, rows))


def raw_mode(image: ImageFile) -> str:
    """Pillow's raw mode of the file; empty where Pillow does not unpack samples."""
    args = image.tile[0].args if image.tile else ""
    first = args[0] if isinstance(args, tuple) and args else args
    return first if isinstance(first, str) else ""


def is_16bit_color(image: ImageFile) -> bool:
    """Whether this is color of 16 bits per sample: Pillow has modes for such gray only."""
    return raw_mode(image).endswith(WIDE) and not image.mode.startswith("I")


HINT = "save uint8, or floats from 0 to 1, as (height, width) or (height, width, channels)"


class ArrayHeader(NamedTuple):
    """The header of a .npy file."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]
    offset: int

    @property
    def channels(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1


# A header is parsed by Python's `ast`, which in 3.11 fails now and then when two threads parse at once.
_parser_lock = Lock()
if sys.platform != "win32":  # in the child of a fork, the thread that held the lock does not exist
    os.register_at_fork(after_in_child=_parser_lock._at_fork_reinit)  # type: ignore[attr-defined]


def read_array_header(data: bytes, name: str) -> ArrayHeader:
    """The header, checked against the length of the file."""
    stream = BytesIO(data)
    try:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        with _parser_lock:
            found = ArrayHeader(*read(stream), stream.tell())
    except (ValueError, SyntaxError, TokenError) as error:  # the header is a literal of Python
        message = f"not a readable .npy file: {error}"
        raise DataError(message, code="data.corrupt_image", where=name, hint=HINT) from error
    if found.dtype != np.uint8 and found.dtype.kind != "f":
        message = f"expected an array of uint8 or floats, found {found.dtype}"
        raise DataError(message, code="data.unsupported_image", where=name, hint=HINT)
    if len(found.shape) not in {2, 3} or 0 in found.shape:
        message = f"expected an image, found an array of shape {found.shape}"
        raise DataError(message, code="data.unsupported_image", where=name, hint=HINT)
    declared = found.offset + int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize
    if len(data) != declared:
        message = f"its header declares {declared} bytes, found {len(data)}"
        code = "data.truncated_image" if len(data) < declared else "data.corrupt_image"
        raise DataError(message, code=code, where=name, hint="remove it or fetch it again")
    return found


def read_array(data: bytes, name: str) -> Pixels:
    """The image in an .npy file."""
    found = read_array_header(data, name)
    flat = np.frombuffer(data, dtype=found.dtype, offset=found.offset)
    array = flat.reshape(found.shape, order="F" if found.fortran_order else "C")
    image = array.reshape(*found.shape[:2], found.channels)  # (H, W, C)
    return floats_to_8bit(image, name) if found.dtype.kind == "f" else image.astype(np.uint8)
