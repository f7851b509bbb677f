"""Image headers: format, size, mode and orientation, read before any pixel is decoded, and the limits on them.

The format is recognized by the bytes of a file, never by its name; other formats are refused.
"""

import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Annotated, Literal, NamedTuple, get_args

from PIL import AvifImagePlugin, BmpImagePlugin, GifImagePlugin, JpegImagePlugin, WebPImagePlugin
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from pydantic import Field

from vitral.core.config import Config, Size
from vitral.core.errors import DataError, format_choices
from vitral.data.decoding.budget import Cost, check_structure, cost_limit, decode_cost
from vitral.data.decoding.pixels import is_16bit_color, read_array_header

ImageFormat = Literal["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "NPY"]  # all that are read

SIGNATURES: dict[ImageFormat, bytes] = {  # patterns of the first bytes
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "BMP": rb"BM",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II[*+]\0|MM\0[*+]",  # + is the larger TIFF, with offsets of 64 bits
    "NPY": rb"\x93NUMPY",
    "WEBP": rb"RIFF....WEBP",
    "AVIF": rb"....ftyp(?:avif|avis|mif1|msf1)",
}

# Formats often found under the name of an image, by their first bytes in lower case, after any blanks.
OTHER_FORMATS = {
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
    b"<svg": "an SVG drawing",
    b"<?xml": "an XML or SVG document",
    b"%!ps": "an EPS or PostScript document",
    b"\xc5\xd0\xd3\xc6": "an EPS document",
    b"%pdf": "a PDF document",
    b"8bps": "a Photoshop document",
    b"pk\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x00\x00\x00\x0cjp": "a JPEG 2000 image",
    b"\x00\x00\x01\x00": "an icon",
    b"version https://git-lfs": "a Git LFS pointer instead of the file",
}
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def recognize(data: bytes, name: str) -> ImageFormat:
    """The format of a file; a DataError if it is not supported or the file is truncated."""
    for kind, pattern in SIGNATURES.items():
        if re.match(pattern, data, re.DOTALL):
            if not _is_complete(data, kind):
                raise decode_error(data, name, kind, EOFError())
            return kind
    hint = f"use {format_choices(get_args(ImageFormat))}, or remove it"
    message = f"expected an image, found {_describe(data)}"
    raise DataError(message, code="data.unknown_format", where=name, hint=hint)


def _is_complete(data: bytes, kind: ImageFormat) -> bool:
    """Whether the last bytes are there, for formats of which Pillow also reads truncated files."""
    match kind:
        case "PNG":
            return PNG_END in data
        case "GIF":
            return data.rstrip(b"\0").endswith(b";")
        case "BMP":
            return len(data) >= 6 and len(data) >= struct.unpack_from("<I", data, 2)[0]
        case _:
            return True


def _describe(data: bytes) -> str:
    if not data:
        return "an empty file"
    opening = data[:256].removeprefix(b"\xef\xbb\xbf").lstrip().lower() or data[:256]
    for start, message in OTHER_FORMATS.items():
        if opening.startswith(start) or data.startswith(start):
            return message
    if data[4:8] == b"ftyp":
        return f"a media file of brand {data[8:12].decode('latin-1')!r}"
    text = data[:256].decode("utf-8", errors="ignore")
    if all(letter.isprintable() or letter.isspace() for letter in text) and len(text.encode()) > len(data[:256]) - 4:
        return f"text beginning {text.strip()[:24]!r}"
    return f"bytes beginning {data[:8].hex(' ')}"


JpegScale = Literal["smallest", "triple", "full"]  # sufficient for the crop, at least three times that, the whole image
Level = Annotated[int, Field(ge=0, le=255)]
MAX_PIXELS = 50_000_000  # by default
MOST_PIXELS = 65_535**2  # of the largest JPEG
ORIENTATION = 0x0112  # EXIF and TIFF
OUT_OF_MEMORY = "decoding it takes more memory than there is"

# The classes themselves, not Image.open: no other format is tried, none warns of what is refused here anyway.
READERS: dict[ImageFormat, type[ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "TIFF": TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
}


class Decoding(Config):
    """How files are decoded, recorded with the weights.

    A lenient decoder uses what it can decode of a damaged image, and names the file.

    Gray is repeated to 3 channels, color becomes ITU-R 601 luma for 1; other channel counts come from .npy files only.
    Alpha is composited on the background.
    """

    channels: int = Field(default=3, ge=1)
    background: tuple[Level, Level, Level] = (255, 255, 255)
    pixel_limit: int = Field(default=MAX_PIXELS, ge=1, le=MOST_PIXELS)
    shortest_side: int = Field(default=8, ge=1)
    longest_aspect: float = Field(default=50.0, ge=1)
    lenient: bool = False
    jpeg_scale: JpegScale = "smallest"  # of bundles and recipes that do not say: they keep their pixels


class Header(NamedTuple):
    """What a file declares: the size after EXIF orientation, the mode of Pillow (`RGB;16` and `uint8 x 4` are ours)."""

    format: ImageFormat
    size: Size
    mode: str
    orientation: int


class _Exact(BytesIO):
    """A stream on which a short read is an error: Pillow only warns when the tags of a TIFF are truncated."""

    exact = True

    def read(self, size: int | None = -1, /) -> bytes:
        got = super().read(size)
        if self.exact and size is not None and len(got) < size:
            raise EOFError
        return got


def read_header(data: bytes, name: str, decoding: Decoding) -> tuple[Header, ImageFile | None, int]:
    """The header of a file within the limits, Pillow's reader, and the bytes of memory that decoding takes.

    The reader, which is None for NPY, has not decoded a pixel.
    """
    kind = recognize(data, name)
    with _budget(name):
        early = check_structure(data, kind)
    if early and early.height * early.width > decoding.pixel_limit:
        raise _too_large(early, name, decoding)
    image = None if kind == "NPY" else pillow_reader(data, name, kind)
    if image is None:
        array = read_array_header(data, name)
        channels, orientation, mode = array.channels, 1, f"{array.dtype} x {array.channels}"
        size = Size(*array.shape[:2])
        cost = Cost(size.height * size.width * (array.channels + decoding.channels), 0.0)  # it has its own bytes
    else:
        channels, orientation, mode = 3, _orientation(image, data), image.mode + ";16" * is_16bit_color(image)
        sideways = orientation >= 5 and kind != "TIFF"  # Pillow turns a TIFF, and its size, itself
        size = Size(*image.size) if sideways else Size(*reversed(image.size))
    _check(size, channels, name, decoding)
    if image is not None:
        with _budget(name):
            cost = decode_cost(image, data, mode, orientation != 1)
        _check_cost(cost, data, name, decoding)
    return Header(kind, size, mode, orientation), image, cost.memory


@contextmanager
def _budget(name: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        hint = "remove it, or save it again as PNG or JPEG"
        raise DataError(str(error), code="data.too_complex", where=name, hint=hint) from None


def _check_cost(needed: Cost, data: bytes, name: str, decoding: Decoding) -> None:
    limit = cost_limit(data, decoding.pixel_limit / MAX_PIXELS)
    share = max(needed.memory / limit.memory, needed.seconds / limit.seconds)
    if share > 1:
        message = (
            f"takes about {needed.memory // 10**6:,} MB and {needed.seconds:.1f} s to decode, the limit for a file "
        )
        message += f"of {len(data):,} bytes is {limit.memory // 10**6:,} MB and {limit.seconds:.1f} s"
        enough = math.ceil(MAX_PIXELS * share * max(decoding.pixel_limit / MAX_PIXELS, 1))
        hint = f"make it smaller, or raise the limit: --max-pixels {enough}"
        raise DataError(message, code="data.image_too_large", where=name, hint=hint)


def pillow_reader(data: bytes, name: str, kind: ImageFormat) -> ImageFile:
    """Pillow's reader of the file; sizes are not checked."""
    stream = _Exact(data) if kind == "TIFF" else BytesIO(data)
    try:
        image = READERS[kind](stream)
    except Exception as error:  # Pillow raises almost any exception for damaged bytes
        raise decode_error(data, name, kind, error) from error
    if isinstance(stream, _Exact):
        stream.exact = False
    return image


def decode_error(data: bytes, name: str, kind: ImageFormat, error: Exception) -> DataError:
    """The error for a file that Pillow could not read."""
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return DataError(OUT_OF_MEMORY, code="data.out_of_memory", where=name, hint="make it smaller")
    if isinstance(error, EOFError) or isinstance(error.__cause__, EOFError) or "truncated" in str(error).lower():
        message = f"{kind} truncated after {len(data)} bytes"
        return DataError(message, code="data.truncated_image", where=name, hint="remove it or fetch it again")
    message = f"not a readable {kind}: {str(error) or type(error).__name__}"
    return DataError(message, code="data.corrupt_image", where=name, hint="remove it, or save it again as PNG or JPEG")


def exif_orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, in a block of EXIF; 1, as stored, where there is none or it cannot be read."""
    tags = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tags[:2], "")
    try:
        (start,) = struct.unpack_from(f"{order}I", tags, 4)
        (count,) = struct.unpack_from(f"{order}H", tags, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tags, entry)
            if tag == ORIENTATION:
                return value if order and 1 <= value <= 8 else 1
    except struct.error:
        pass  # damaged metadata is common, and the pixels may be intact
    return 1


def _orientation(image: ImageFile, data: bytes) -> int:
    if isinstance(image, TiffImageFile):
        value = image.tag_v2.get(ORIENTATION, 1)
        return value if value in range(1, 9) else 1
    return exif_orientation(_png_exif(data) if isinstance(image, PngImageFile) else image.info.get("exif", b""))


def _png_exif(data: bytes) -> bytes:
    """The EXIF of a PNG: it may come after the pixels, and Pillow would decode them all to reach it."""
    place = 8
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"eXIf":
            return data[place + 8 : place + 8 + length]
        place += 12 + length
    return b""


def _too_large(size: Size, name: str, decoding: Decoding) -> DataError:
    pixels = size.height * size.width
    message = f"{size} is {pixels:,} pixels, the limit is {decoding.pixel_limit:,}"
    hint = f"make it smaller, or raise the limit: --max-pixels {pixels}"
    return DataError(message, code="data.image_too_large", where=name, hint=hint)


def _check(size: Size, channels: int, name: str, decoding: Decoding) -> None:
    """Raise a DataError if the image exceeds a limit."""
    pixels, short, long, wanted = size.height * size.width, min(size), max(size), decoding.channels
    if channels != wanted and not {channels, wanted} <= {1, 3}:
        code, message = "data.channel_mismatch", f"expected {wanted} channels, found {channels}"
        hint = "use .npy arrays of (height, width, channels)"
    elif pixels > decoding.pixel_limit:
        raise _too_large(size, name, decoding)
    elif short < decoding.shortest_side:
        code, message = "data.image_too_small", f"{size} has a side of {short}, the minimum is {decoding.shortest_side}"
        hint = "remove it or lower shortest_side"
    elif long > short * decoding.longest_aspect:
        code, message = "data.extreme_aspect", f"{size} has an aspect ratio of {long / short:.0f}"
        message, hint = f"{message}, the limit is {decoding.longest_aspect:g}", "crop it or raise longest_aspect"
    else:
        return
    raise DataError(message, code=code, where=name, hint=hint)
