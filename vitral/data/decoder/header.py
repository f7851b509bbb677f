"""What a file says of its image before any pixel is decoded, and the limits it is held to."""

import struct
from io import BytesIO
from typing import Annotated, NamedTuple

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from pydantic import Field

from vitral.config import Config, Size
from vitral.data.decoder.arrays import layout
from vitral.data.decoder.depth import is_wide
from vitral.data.decoder.kind import Kind, recognise, truncated
from vitral.errors import DataError, VitralError

Level = Annotated[int, Field(ge=0, le=255)]
PILLOW_LIMIT = 89_478_485  # above it Pillow has its own rules
ORIENTATION = 0x0112  # EXIF and TIFF
SIDEWAYS = {5, 6, 7, 8}  # the orientations that exchange height and width

# The classes themselves, not Image.open: no other format is tried, none warns of what is refused here anyway.
READERS: dict[Kind, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "BMP": BmpImageFile,
    "GIF": GifImageFile,
    "TIFF": TiffImageFile,
    "AVIF": AvifImageFile,
}


class Decoding(Config):
    """How files become pixels, recorded with the weights.

    Channels are what the model takes: grey is repeated, colour becomes ITU-R 601 luma; counts other than 1 and 3 come
    from .npy files only. Alpha is composited on the background.
    """

    channels: int = Field(default=3, ge=1)
    background: tuple[Level, Level, Level] = (255, 255, 255)
    pixel_limit: int = Field(default=50_000_000, ge=1, le=PILLOW_LIMIT)
    shortest_side: int = Field(default=8, ge=1)
    longest_aspect: float = Field(default=50.0, ge=1)


class Header(NamedTuple):
    """An image as declared: its size once upright, its mode in Pillow's words (`RGB;16` and `uint8 x 4` are ours)."""

    format: Kind
    size: Size
    mode: str
    orientation: int


class _Exact(BytesIO):
    """Bytes of which a short read is an error: Pillow only warns when the tags of a TIFF are cut off."""

    exact = True

    def read(self, size: int | None = -1, /) -> bytes:
        got = super().read(size)
        if self.exact and size is not None and len(got) < size:
            raise EOFError
        return got


def header(data: bytes, name: str, decoding: Decoding) -> Header:
    """What the file declares, within the limits; no pixel is decoded, whatever the size."""
    kind = recognise(data, name)
    if kind != "NPY":
        return open_image(data, name, kind, decoding)[1]
    found = layout(data, name)
    _check_channels(found.channels, name, decoding)
    head = Header(kind, Size(*found.shape[:2]), f"{found.dtype} x {found.channels}", 1)
    _check_size(head.size, name, decoding)
    return head


def open_image(data: bytes, name: str, kind: Kind, decoding: Decoding) -> tuple[ImageFile, Header]:
    """A picture of any kind but NPY, opened and within the limits, but not loaded."""
    _check_channels(3, name, decoding)
    image = reader(data, name, kind)
    orientation = _orientation(image, data)
    width, height = image.size
    sideways = orientation in SIDEWAYS and kind != "TIFF"  # Pillow turns a TIFF, and its size, itself
    size = Size(width, height) if sideways else Size(height, width)
    _check_size(size, name, decoding)
    return image, Header(kind, size, f"{image.mode};16" if is_wide(image) else image.mode, orientation)


def reader(data: bytes, name: str, kind: Kind) -> ImageFile:
    """Pillow's reader of the file, whatever its size."""
    stream = _Exact(data) if kind == "TIFF" else BytesIO(data)
    try:
        image = READERS[kind](stream)
    except Exception as error:  # Pillow answers damaged bytes with almost any exception
        raise damaged(data, name, kind, error) from error
    if isinstance(stream, _Exact):
        stream.exact = False
    return image


def damaged(data: bytes, name: str, kind: Kind, error: Exception) -> VitralError:
    """The error for a file that Pillow could not read."""
    if isinstance(error, EOFError) or isinstance(error.__cause__, EOFError) or "truncated" in str(error).lower():
        return truncated(data, name, kind)
    what = f"not a readable {kind}: {str(error) or type(error).__name__}"
    return DataError(what, code="data.corrupt_image", where=name, remedy="remove it, or save it anew as PNG or JPEG")


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
        pass  # damaged metadata is common, and says nothing of the pixels
    return 1


def _orientation(image: ImageFile, data: bytes) -> int:
    if isinstance(image, TiffImageFile):
        value = image.tag_v2.get(ORIENTATION, 1)
        return value if value in range(1, 9) else 1
    return exif_orientation(_png_exif(data) if isinstance(image, PngImageFile) else image.info.get("exif", b""))


def _png_exif(data: bytes) -> bytes:
    """The EXIF of a PNG: it may stand after the pixels, where Pillow would decode them all to reach it."""
    place = 8
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"eXIf":
            return data[place + 8 : place + 8 + length]
        place += 12 + length
    return b""


def _check_channels(found: int, name: str, decoding: Decoding) -> None:
    wanted = decoding.channels
    if found != wanted and not {found, wanted} <= {1, 3}:
        what = f"expected {wanted} channels, found {found}"
        raise DataError(
            what, code="data.channel_mismatch", where=name, remedy="give .npy arrays of (height, width, channels)"
        )


def _check_size(size: Size, name: str, decoding: Decoding) -> None:
    pixels, short, long = size.height * size.width, min(size), max(size)
    if pixels > decoding.pixel_limit:
        what = f"{size} is {pixels:,} pixels, the limit is {decoding.pixel_limit:,}"
        raise DataError(what, code="data.image_too_large", where=name, remedy="make it smaller or raise pixel_limit")
    if short < decoding.shortest_side:
        what = f"{size} has a side of {short}, the shortest allowed is {decoding.shortest_side}"
        raise DataError(what, code="data.image_too_small", where=name, remedy="remove it or lower shortest_side")
    if long > short * decoding.longest_aspect:
        what = f"{size} is {long / short:.0f} times as long as wide, at most {decoding.longest_aspect:g} is allowed"
        raise DataError(what, code="data.extreme_aspect", where=name, remedy="cut it or raise longest_aspect")
