"""Images of any Pillow mode as 8-bit gray or color, with or without alpha.  H rows, W columns.

Corrects what Pillow converts wrongly: 16 bits and floats, transparent colors of 2-, 4- and 16-bit PNGs, the uncovered
part of a GIF. Ambiguous modes are refused.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from vitral.core.errors import DataError
from vitral.data.decoding.header import Header, decode_error, pillow_reader
from vitral.data.decoding.pixels import (
    Pixels,
    floats_to_8bit,
    is_16bit_color,
    raw_mode,
    read_16bit,
    set_raw_mode,
    to_8bit,
)

BITS, PHOTOMETRIC, PLANES = 258, 262, 284  # tags of a TIFF
CONVERSIONS = {"1": "L", "La": "LA", "CMYK": "RGB", "YCbCr": "RGB"}
AS_THEY_ARE = {"L", "LA", "RGB", "RGBA"}
KEYED = {"1", "L", "RGB", "I;16"}  # modes in which one value can stand for transparent


def read_samples(image: ImageFile, header: Header, data: bytes, name: str) -> Pixels:
    """Gray, gray and alpha, color, or color and alpha: (H, W, 1 to 4), as stored, except that a TIFF is upright."""
    if isinstance(image, TiffImageFile) and image.tag_v2.get(PLANES, 1) != 1 and max(image.tag_v2.get(BITS, (1,))) > 8:
        message = "more than 8 bits a sample in separate planes"  # of which Pillow makes noise
        raise DataError(message, code="data.unsupported_image", where=name, hint="save it interleaved")
    if is_16bit_color(image):
        return _wide_color(image, header, data, name)
    covered = image.tile[0].extents if header.format == "GIF" else None
    if header.mode == "F" and image.tile[0].codec_name == "libtiff":
        set_raw_mode(image, "F;32NF")  # libtiff gives native order; Pillow would swap the bytes of some once more
    _load(image, header, data, name)
    if image.mode in {"P", "PA"}:
        samples = np.array(image.convert("RGBA" if image.has_transparency_data else "RGB"))
    elif image.mode in CONVERSIONS:
        samples = np.array(image.convert(CONVERSIONS[image.mode]))
    elif image.mode in AS_THEY_ARE:
        samples = np.array(image)
    else:
        samples = _deep_gray(image, name)
    if image.mode in KEYED and "transparency" in image.info:
        values = np.asarray(image) if image.mode == "I;16" else samples
        return _with_alpha(samples, _differs(values, _key(image, data)))
    if covered and covered != (0, 0, *image.size) and "transparency" not in image.info:
        return _with_alpha(samples, _inside(samples, covered))
    return samples.reshape(*samples.shape[:2], -1)


def _load(image: ImageFile, header: Header, data: bytes, name: str) -> None:
    try:
        image.load()
    except Exception as error:  # Pillow answers damaged bytes with almost any exception
        raise decode_error(data, name, header.format, error) from error


def _deep_gray(image: ImageFile, name: str) -> Pixels:
    """Gray of 12 or 16 bits or floats, (H, W)."""
    values = np.array(image)
    dark_is_high = isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == 0  # not seen to by Pillow
    if image.mode == "F":
        levels = floats_to_8bit(values, name)
    elif image.mode in {"I;16", "I;16B"}:
        bits = image.tag_v2[BITS][0] if isinstance(image, TiffImageFile) else 16
        levels = to_8bit(values, 2**bits - 1)
    else:
        message = f"pixels of mode {image.mode}, from {values.min()} to {values.max()}, have no one meaning as an image"
        raise DataError(message, code="data.unsupported_image", where=name, hint="save it with 8 or 16 bits a sample")
    return 255 - levels if dark_is_high else levels


def _wide_color(image: ImageFile, header: Header, data: bytes, name: str) -> Pixels:
    """Color of 16 bits a sample, (H, W, 2 to 4)."""
    raw = raw_mode(image)
    if raw.startswith("RGBa"):
        message = "16-bit color with premultiplied alpha"
        raise DataError(message, code="data.unsupported_image", where=name, hint="save it with straight alpha")

    def load(mode: str) -> Pixels:
        copy = pillow_reader(data, name, header.format)
        set_raw_mode(copy, mode)
        _load(copy, header, data, name)
        return np.asarray(copy)

    values = read_16bit(load, raw)
    samples = to_8bit(values, 65_535)
    if image.mode == "CMYK":
        return np.array(Image.fromarray(samples, "CMYK").convert("RGB"))
    if "transparency" in image.info:
        return _with_alpha(samples, _differs(values, image.info["transparency"]))
    return samples


def _key(image: ImageFile, data: bytes) -> int | tuple[int, ...]:
    """The transparent value on the scale of the pixels: Pillow widens the 2 or 4 bits of a gray PNG, not its key."""
    key: int | tuple[int, ...] = image.info["transparency"]
    if image.format == "PNG" and image.mode == "L" and isinstance(key, int):
        return key * 255 // (2 ** data[24] - 1)  # byte 24 of a PNG is its bit depth
    return key


def _differs(values: NDArray[np.generic], key: int | tuple[int, ...]) -> NDArray[np.bool_]:
    """Where a pixel is not the one transparent value, (H, W)."""
    different = values.reshape(*values.shape[:2], -1) != np.array(key)
    return different.any(axis=-1)


def _inside(samples: Pixels, window: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    """Which pixels of its canvas the first frame of a GIF covers, (H, W)."""
    left, top, right, bottom = window
    inside = np.zeros(samples.shape[:2], dtype=np.bool_)
    inside[top:bottom, left:right] = True
    return inside


def _with_alpha(samples: Pixels, opaque: NDArray[np.bool_]) -> Pixels:
    return np.dstack([samples, np.where(opaque, 255, 0).astype(np.uint8)])
