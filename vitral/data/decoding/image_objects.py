"""Images as Python objects: a path, the bytes of a file, a PIL image or an array, as bytes that the decoder reads.

H rows, W columns, C channels.
"""

import os
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile

from vitral.core.errors import DataError
from vitral.core.files import IMAGE_BYTES, FileTooLarge, NotRegularFile, read_file
from vitral.core.storage import os_error_message
from vitral.data.decoding.header import ImageFormat, exif_orientation
from vitral.data.decoding.pixels import floats_to_8bit, to_8bit

ImageLike = str | Path | bytes | Image.Image | NDArray[Any]

FILES = {*get_args(ImageFormat), "MPO"}  # an MPO is a JPEG with more pictures after it
KEYED = {"1", "L", "RGB", "P", "I;16"}  # modes in which one value can mean transparent
PNG_MODES = {"LA", "RGBA", "P", "1"}
WITH_ALPHA = {"PA": "RGBA", "RGBa": "RGBA", "La": "LA"}  # written after this conversion
TURNS = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def image_bytes(image: object, name: str = "image", channels: int = 3) -> bytes:
    """The image in a form that the decoder reads, without loss; DataError for an object that is not an image.

    A PIL image that was opened and not loaded yet is its file. `channels` is what the model takes: an array with 2 or 4
    channels is one with alpha, unless the model takes as many.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return _read_file(Path(image))
    if isinstance(image, Image.Image):
        try:
            return _file_of(image) or _pixels_of(image, name)
        except DataError:
            raise
        except (OSError, ValueError, SyntaxError, AssertionError) as error:  # Pillow's, of a damaged or closed image
            message, hint = f"Pillow cannot read it: {error or type(error).__name__}", "open the file again"
            raise DataError(message, code="data.corrupt_image", where=name, hint=hint) from error
    if isinstance(image, np.ndarray):
        return _array_bytes(image, name, channels)
    hint = "convert it to one of these; tensors are inputs of the model already"
    message = f"expected a path, bytes, a PIL image or an array (H, W, C), got {type(image).__name__}"
    raise DataError(message, code="data.unsupported_image", where=name, hint=hint)


def _read_file(path: Path) -> bytes:
    try:
        return read_file(path.expanduser(), IMAGE_BYTES)
    except OSError as error:
        codes = {FileNotFoundError: "data.not_found", NotRegularFile: "data.not_a_file"}
        code = {**codes, FileTooLarge: "data.file_too_large"}.get(type(error), "data.unreadable")
        raise DataError(os_error_message(error), code=code, where=path, hint="check the path") from None


def _file_of(image: Image.Image) -> bytes:
    """The bytes that an image was opened from, if they are all that it is: no pixel was loaded, no draft is set."""
    if not isinstance(image, ImageFile) or image.fp is None or image.format not in FILES:
        return b""
    if image._im is not None or image.tell() or getattr(image, "decoderconfig", None):
        return b""
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    return data


def _pixels_of(image: Image.Image, name: str) -> bytes:
    image.load()
    turn = TURNS.get(exif_orientation(image.info.get("exif", b"")))
    upright = image if turn is None else image.transpose(turn)
    mode = upright.mode
    if mode in PNG_MODES or (mode in KEYED and "transparency" in upright.info):
        return _png(upright)
    if mode in WITH_ALPHA:
        return _png(upright.convert(WITH_ALPHA[mode]))
    if mode.startswith("I;16"):
        return _npy(to_8bit(np.asarray(upright), 65_535))
    if mode in {"I", "LAB"}:
        message, hint = f"pixels of mode {mode} are ambiguous as an image", "convert it to RGB or L"
        raise DataError(message, code="data.unsupported_image", where=name, hint=hint)
    return _npy(np.asarray(upright if mode in {"L", "RGB", "F"} else upright.convert("RGB")))


def _array_bytes(array: NDArray[Any], name: str, channels: int) -> bytes:
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        message, hint = f"expected an array of uint8 or floats, got {array.dtype}", "use uint8, or floats from 0 to 1"
        raise DataError(message, code="data.unsupported_image", where=name, hint=hint)
    if array.ndim == 3 and array.shape[0] in {1, 3, 4} and array.shape[2] not in {1, 2, 3, 4, channels}:
        message, hint = f"shape {array.shape} looks like (C, H, W)", "use array.transpose(1, 2, 0)"
        raise DataError(message, code="data.unsupported_image", where=name, hint=hint)
    if array.ndim == 3 and array.shape[2] in {2, 4} and channels in {1, 3} and 0 not in array.shape:
        levels = floats_to_8bit(array.astype(np.float64), name) if array.dtype.kind == "f" else array
        return _png(Image.fromarray(np.ascontiguousarray(levels)))
    return _npy(array)


def _npy(array: NDArray[Any]) -> bytes:
    stream = BytesIO()
    np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
    return stream.getvalue()


def _png(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG", compress_level=0)
    return stream.getvalue()
