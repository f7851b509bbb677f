"""What a file is, told by its bytes: its name is never believed, and what is on no list is refused."""

import struct
from typing import Literal, get_args

from vitral.errors import DataError, either

Kind = Literal["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "NPY"]  # this line is the list of what is read

OPENINGS: dict[bytes, Kind] = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"BM": "BMP",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # the larger TIFF, with offsets of 64 bits
    b"MM\0+": "TIFF",
    b"\x93NUMPY": "NPY",
}
AVIF_BRANDS = (b"avif", b"avis", b"mif1", b"msf1")

# What is often found under the name of an image. Words are sought in lower case, after any blanks.
STRANGERS = {
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
    b"version https://git-lfs": "a Git LFS pointer, not the file it stands for",
}
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def recognise(data: bytes, name: str) -> Kind:
    """The kind of a file, which must be one that is read and must have its end."""
    kind = _kind(data)
    if kind is None:
        remedy = f"give {either(get_args(Kind))}, or remove it"
        what = f"expected an image, found {_stranger(data)}"
        raise DataError(what, code="data.unknown_format", where=name, remedy=remedy)
    if not _ends(data, kind):
        raise truncated(data, name, kind)
    return kind


def truncated(data: bytes, name: str, kind: Kind) -> DataError:
    what = f"{kind} truncated after {len(data)} bytes"
    return DataError(what, code="data.truncated_image", where=name, remedy="remove it or fetch it again")


def _kind(data: bytes) -> Kind | None:
    for opening, kind in OPENINGS.items():
        if data.startswith(opening):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    return "AVIF" if data[4:8] == b"ftyp" and data[8:12] in AVIF_BRANDS else None


def _ends(data: bytes, kind: Kind) -> bool:
    """Whether the last bytes are there, for the kinds of which Pillow also reads what has lost some."""
    match kind:
        case "PNG":
            return PNG_END in data
        case "GIF":
            return data.rstrip(b"\0").endswith(b";")
        case "BMP":
            return len(data) >= 6 and len(data) >= struct.unpack_from("<I", data, 2)[0]
        case _:
            return True


def _stranger(data: bytes) -> str:
    if not data:
        return "an empty file"
    opening = data[:256].removeprefix(b"\xef\xbb\xbf").lstrip().lower() or data[:256]
    for start, what in STRANGERS.items():
        if opening.startswith(start) or data.startswith(start):
            return what
    if data[4:8] == b"ftyp":
        return f"a media file of brand {data[8:12].decode('latin-1')!r}"
    text = data[:256].decode("utf-8", errors="ignore")
    if all(letter.isprintable() or letter.isspace() for letter in text) and len(text.encode()) > len(data[:256]) - 4:
        return f"text beginning {text.strip()[:24]!r}"
    return f"bytes beginning {data[:8].hex(' ')}"
