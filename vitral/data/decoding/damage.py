"""Damage that decoders pass over: each function says what is wrong with a file, in words, or nothing.

JPEG   libjpeg warns and fills the rest with gray; what is harmless is decided by `is_harmless`
PNG    Pillow does not compare the checksums of pixels
TIFF   libtiff writes to stderr and goes on; see also `tiff_damage`
AVIF   libavif scales what is inside to the size that the header declares
"""

import ctypes
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import PIL

from vitral.core.config import Size
from vitral.data.decoding.avif import read_sizes

# Warnings of libjpeg that mean lost or wrong pixels; in a file without them every pixel is as it was written.
LOST_PIXELS = re.compile(r"Corrupt JPEG data(?!: bad ICC)|Premature end|Inconsistent progression")
WARNINGS = re.compile(
    rf"{LOST_PIXELS.pattern}|Corrupt JPEG data|unknown JFIF revision|Unknown Adobe color|Invalid SOS parameters"
)
EXTRANEOUS = re.compile(r"([0-9]+) extraneous bytes before marker 0x([0-9a-f]{2})")
# Webcams and hardware encoders leave a few bytes between the last pixel and the next marker. Damage leaves more: at
# least 5 in all of 331 damaged photos whose decoder ended early.
FEW_BYTES = 4
PADDING = (b"\0", b"\xff")
FRAMES, SCAN, END = {0xC2, 0xCA}, 0xDA, 0xD9  # markers of progressive frames, of their scans, of the image's end
SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # not the padding, restarts and stuffed bytes between pixels
ENTROPY_MARKERS = {*range(0xD0, 0xD8), 0xD9}  # restart and end: they follow pixels


def is_warning(message: str) -> bool:
    """Whether a message of libjpeg is a warning, after which it goes on; other messages are errors."""
    return bool(WARNINGS.search(message))


def is_harmless(message: str, data: bytes) -> bool:
    """Whether a warning of libjpeg leaves all pixels intact.

    Harmless are odd versions and color codes, bytes between the segments of the header, and before a restart or end
    marker a few bytes or padding. Bytes after the end of the image are no warning at all.
    """
    if not LOST_PIXELS.search(message):
        return True
    found = EXTRANEOUS.search(message)
    if not found:
        return False
    count, marker = int(found[1]), int(found[2], 16)
    if marker in ENTROPY_MARKERS:
        end = data.rfind(bytes([0xFF, marker]))
        rest = data[max(end - count, 0) : end]
        return count <= FEW_BYTES or any(not rest.strip(padding) for padding in PADDING)
    return _is_in_header(bytes([0xFF, marker]), count, data)


def _is_in_header(marker: bytes, count: int, data: bytes) -> bool:
    """Whether so many stray bytes stand before such a marker between two segments, ahead of all pixels."""
    place = 2
    while (start := data.find(b"\xff", place)) >= 0 and data[start : start + 2] != b"\xff\xda":
        if start - place == count and data[start : start + 2] == marker:
            return True
        place = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    return start - place == count and marker == b"\xff\xda"


def missing_scans(data: bytes) -> str:
    """What a progressive JPEG lacks that ends between two of its scans, of which libjpeg does not warn."""
    missing: dict[tuple[int, int], int] = {}  # lowest bits of each coefficient of each component that have not come
    place = 2
    while found := SEGMENT.search(data, place):
        start, marker = found.start(), data[found.start() + 1]
        place = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        if marker == END:
            break
        if marker in FRAMES:
            components = data[start + 10 : place : 3]
            missing = {(component, number): 8 for component in components for number in range(64)}
        elif marker == SCAN:
            first, last, bits = data[place - 3 : place]
            for component in data[start + 5 : place - 3 : 2]:
                missing |= {(component, number): bits & 15 for number in range(first, last + 1)}
    lost = sum(count > 0 for count in missing.values())
    return (
        f"its last scans are missing: {lost} of {len(missing)} coefficients of a block are not complete" if lost else ""
    )


def png_damage(data: bytes) -> str:
    """The first chunk whose checksum is wrong."""
    place = 8
    whole = memoryview(data)
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 8 + length
        if end + 4 > len(data):
            return ""  # truncated: the decoder says so where it matters
        if zlib.crc32(whole[place + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return f"the checksum of its chunk {kind.decode('latin-1')!r} at byte {place} is wrong"
        if kind == b"IEND":
            return ""
        place = end + 4
    return ""


def avif_damage(data: bytes, size: Size) -> str:
    """How the header lies about the size of the image."""
    declared, coded = read_sizes(data)
    wrong = [each for each in coded if each not in declared and each not in {size, Size(size.width, size.height)}]
    return f"declares {declared[0] if declared else size}, holds {wrong[0]}" if wrong else ""


Handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
_messages = threading.local()


@contextmanager
def libtiff_messages() -> Iterator[list[str]]:
    """The errors that libtiff reports in this thread, in the words of its formats, instead of writing them to stderr.

    The list stays empty where the library of Pillow is not found.
    """
    _set_handlers()
    _messages.found = []
    try:
        yield _messages.found
    finally:
        _messages.found = None


def _collect(module: bytes | None, text: bytes | None, values: Any) -> None:
    found: list[str] | None = getattr(_messages, "found", None)
    if found is not None and len(found) < 10:
        found.append(b": ".join(filter(None, (module, text))).decode("latin-1"))


def _collect_warning(module: bytes | None, text: bytes | None, values: Any) -> None:
    """Warnings are about unusual tags, except those of a decoder."""
    if module and (b"Decode" in module or b"JPEGLib" in module):
        _collect(module, text, values)


_on_error, _on_warning = Handler(_collect), Handler(_collect_warning)  # kept: C calls them


@cache
def _set_handlers() -> None:
    for path in sorted(Path(PIL.__file__).parent.parent.glob("pillow.libs/libtiff*")):
        library = ctypes.CDLL(str(path))  # the one that Pillow has loaded
        library.TIFFSetErrorHandler(_on_error)
        library.TIFFSetWarningHandler(_on_warning)
