"""NumPy's .npy files as images, (H, W) or (H, W, C), of any number of channels. Never pickle."""

import os
import sys
from io import BytesIO
from threading import Lock
from tokenize import TokenError
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

from vitral.data.decoder.depth import Pixels, unit_floats
from vitral.errors import DataError

REMEDY = "save uint8, or floats from 0 to 1, as (height, width) or (height, width, channels)"


class Layout(NamedTuple):
    """How an array lies in its file."""

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[np.generic]
    offset: int

    @property
    def channels(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1


def layout(data: bytes, name: str) -> Layout:
    """What the header promises, once the file is as long as that."""
    found = _header(data, name)
    if found.dtype != np.uint8 and found.dtype.kind != "f":
        what = f"expected an array of uint8 or floats, found {found.dtype}"
        raise DataError(what, code="data.unsupported_image", where=name, remedy=REMEDY)
    if len(found.shape) not in {2, 3} or 0 in found.shape:
        what = f"expected an image, found an array of shape {found.shape}"
        raise DataError(what, code="data.unsupported_image", where=name, remedy=REMEDY)
    promised = found.offset + int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize
    if len(data) != promised:
        what = f"its header promises {promised} bytes, found {len(data)}"
        code = "data.truncated_image" if len(data) < promised else "data.corrupt_image"
        raise DataError(what, code=code, where=name, remedy="remove it or fetch it again")
    return found


def read_array(data: bytes, name: str) -> Pixels:
    """The image in an .npy file."""
    found = layout(data, name)
    flat = np.frombuffer(data, dtype=found.dtype, offset=found.offset)
    array = flat.reshape(found.shape, order="F" if found.columns_first else "C")
    image = array.reshape(*found.shape[:2], found.channels)  # (H, W, C)
    return unit_floats(image.astype(np.float64), name) if found.dtype.kind == "f" else image.astype(np.uint8)


class _Turns:
    """A header is parsed by Python's `ast`, which in 3.11 fails now and then when two threads parse at once."""

    lock = Lock()

    @classmethod
    def begin(cls) -> None:
        cls.lock = Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_Turns.begin)  # whoever held it is not in the child


def _header(data: bytes, name: str) -> Layout:
    stream = BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with _Turns.lock:
            shape, columns_first, dtype = read(stream)
    except (ValueError, SyntaxError, TokenError) as error:  # the header is a literal of Python
        what = f"not a readable .npy file: {error}"
        raise DataError(what, code="data.corrupt_image", where=name, remedy=REMEDY) from error
    return Layout(shape, columns_first, dtype, stream.tell())
