"""Damage in a TIFF that its decoder passes over: each page is read once more, where more can be learnt that way.

Fax, JPEG   libtiff warns of lines of wrong length and of lost pixels, but Pillow turns warnings off: here it is called
            with handlers of our own
Deflate     libtiff stops after the last pixel, before the checksum

LZW, PackBits and ZSTD, as libtiff writes them, have no checksums: only what is no valid code is noticed.
"""

import ctypes
import zlib
from ctypes import CFUNCTYPE, c_char_p, c_int, c_ssize_t, c_uint32, c_uint64, c_void_p
from functools import cache
from io import BytesIO
from pathlib import Path

import PIL
from PIL.TiffImagePlugin import TiffImageFile

from vitral.data.decoding.budget import COMPRESSION, STRIP_BYTES, STRIPS, TILE_BYTES, TILES
from vitral.data.decoding.damage import EXTRANEOUS, FEW_BYTES, LOST_PIXELS

FAX, JPEG, DEFLATE = {2, 3, 4}, {7}, {8, 32_946}
MAX_MESSAGES = 10
TEXT_BYTES = 512

Handle = c_void_p
OnMessage = CFUNCTYPE(c_int, Handle, c_void_p, c_char_p, c_char_p, c_void_p)
Read = CFUNCTYPE(c_ssize_t, Handle, c_void_p, c_ssize_t)
Seek = CFUNCTYPE(c_uint64, Handle, c_uint64, c_int)
Close = CFUNCTYPE(c_int, Handle)
Length = CFUNCTYPE(c_uint64, Handle)
Map = CFUNCTYPE(c_int, Handle, c_void_p, c_void_p)
Unmap = CFUNCTYPE(None, Handle, c_void_p, c_uint64)
SIGNATURES = {
    "TIFFOpenOptionsAlloc": (c_void_p,),
    "TIFFOpenOptionsFree": (None, c_void_p),
    "TIFFOpenOptionsSetErrorHandlerExtR": (None, c_void_p, OnMessage, c_void_p),
    "TIFFOpenOptionsSetWarningHandlerExtR": (None, c_void_p, OnMessage, c_void_p),
    "TIFFClientOpenExt": (Handle, c_char_p, c_char_p, Handle, Read, Read, Seek, Close, Length, Map, Unmap, c_void_p),
    "TIFFClose": (None, Handle),
    "TIFFIsTiled": (c_int, Handle),
    "TIFFNumberOfStrips": (c_uint32, Handle),
    "TIFFNumberOfTiles": (c_uint32, Handle),
    "TIFFStripSize": (c_ssize_t, Handle),
    "TIFFTileSize": (c_ssize_t, Handle),
    "TIFFReadEncodedStrip": (c_ssize_t, Handle, c_uint32, c_void_p, c_ssize_t),
    "TIFFReadEncodedTile": (c_ssize_t, Handle, c_uint32, c_void_p, c_ssize_t),
}


def tiff_damage(image: TiffImageFile, data: bytes) -> str:
    """What is wrong with the first page, in words, or nothing."""
    compression, pixels = image.tag_v2.get(COMPRESSION, 1), image.width * image.height
    if compression in DEFLATE:
        return _checksum_damage(image, data, 8 * pixels + 2**20)
    if compression in FAX | JPEG:
        return "; ".join(dict.fromkeys(libtiff_warnings(data, 4 * pixels + 2**20)))
    return ""


def _checksum_damage(image: TiffImageFile, data: bytes, max_bytes: int) -> str:
    """The first strip or tile that does not inflate, or whose checksum is wrong, within so many bytes of pixels."""
    tags = image.tag_v2
    starts, counts = (tags.get(STRIPS) or tags.get(TILES, ()), tags.get(STRIP_BYTES) or tags.get(TILE_BYTES, ()))
    for number, (start, count) in enumerate(zip(starts, counts, strict=False)):
        inflate, rest, some = zlib.decompressobj(), data[start : start + count], b"-"
        try:
            while (rest or some) and not inflate.eof and max_bytes > 0:
                some = inflate.decompress(rest, 2**20)
                rest, max_bytes = inflate.unconsumed_tail, max_bytes - len(some)
        except zlib.error as error:
            return f"part {number} of its pixels: {error}"
        if count and not inflate.eof and max_bytes > 0:
            return f"part {number} of its pixels has no end"
    return ""


@cache
def _library() -> ctypes.CDLL | None:
    """The libtiff of Pillow; None where it is not found, or is older than 4.5."""
    for path in sorted(Path(PIL.__file__).parent.parent.glob("pillow.libs/libtiff*")):
        library = ctypes.CDLL(str(path))
        try:
            for name, (result, *arguments) in SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except AttributeError:
            continue
        return library
    return None


def libtiff_warnings(data: bytes, max_bytes: int) -> list[str]:
    """What libtiff warns of as it decodes the first page, whose parts have at most so many bytes."""
    library = _library()
    found: list[str] = []
    if library is None:
        return []

    def collect(handle: int, user: int, module: bytes | None, form: bytes | None, values: int) -> int:
        text = ctypes.create_string_buffer(TEXT_BYTES)
        ctypes.CDLL(None).vsnprintf(text, c_ssize_t(TEXT_BYTES), form, c_void_p(values))
        message = f"{(module or b'').decode('latin-1')}: {text.value.decode('latin-1')}"
        if len(found) < MAX_MESSAGES and _is_damage(message):
            found.append(message)
        return 1  # no other handler is called

    def read(handle: int, buffer: int, size: int) -> int:
        content = stream.read(size)
        ctypes.memmove(buffer, content, len(content))
        return len(content)

    stream, on_message = BytesIO(data), OnMessage(collect)
    procs = (Read(read), Read(lambda *_: 0), Seek(lambda _, *where: stream.seek(*where)), Close(lambda _: 0))
    maps = (Length(lambda _: len(data)), Map(lambda *_: 0), Unmap(lambda *_: None))  # not mapped
    options = library.TIFFOpenOptionsAlloc()
    library.TIFFOpenOptionsSetErrorHandlerExtR(options, on_message, None)
    library.TIFFOpenOptionsSetWarningHandlerExtR(options, on_message, None)
    handle = library.TIFFClientOpenExt(b"", b"r", None, *procs, *maps, options)
    library.TIFFOpenOptionsFree(options)
    if handle:
        _read_all(library, handle, max_bytes)
        library.TIFFClose(handle)
    return found


def _is_damage(message: str) -> bool:
    """Whether a message is about pixels; others are about tags, or harmless.

    Fax data without marks at the ends of its lines is harmless, and so is what libjpeg goes on after intact pixels.
    """
    if message.startswith("JPEGLib"):
        extra = EXTRANEOUS.search(message)
        return bool(LOST_PIXELS.search(message)) and not (extra and int(extra[1]) <= FEW_BYTES)
    return "Decode" in message.partition(":")[0] and "without EOL" not in message


def _read_all(library: ctypes.CDLL, handle: int, max_bytes: int) -> None:
    kind = "Tile" if library.TIFFIsTiled(handle) else "Strip"
    size = getattr(library, f"TIFF{kind}Size")(handle)
    if 0 < size <= max_bytes:
        buffer = ctypes.create_string_buffer(size)
        for number in range(getattr(library, f"TIFFNumberOf{kind}s")(handle)):
            getattr(library, f"TIFFReadEncoded{kind}")(handle, number, buffer, size)
