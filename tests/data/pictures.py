"""Small files of every kind, written by Pillow where it can and by hand where it cannot."""

import struct
import zlib
from collections.abc import Iterable
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
Order = Literal["<", ">"]
ORDERS: tuple[Order, ...] = ("<", ">")
ROWS, COLUMNS = 24, 20


def noise(*shape: int, highest: int = 255, seed: int = 0) -> NDArray[np.int64]:
    """Samples in which every error shows."""
    return np.random.default_rng(seed).integers(0, highest + 1, shape)


def smooth(rows: int = ROWS, columns: int = COLUMNS) -> NDArray[np.uint8]:
    """Color that lossy formats keep within a few levels."""
    down, across = np.mgrid[0:rows, 0:columns]
    return np.stack([down * 200 // rows, across * 200 // columns, down * 0 + 90], axis=-1).astype(np.uint8)


def color() -> NDArray[np.uint8]:
    return noise(ROWS, COLUMNS, 3).astype(np.uint8)


def encoded(image: Image.Image | Array, kind: str, **options: Any) -> bytes:
    """The image as Pillow writes it."""
    stream = BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **options)
    return stream.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(rows: Iterable[bytes], size: tuple[int, int], bits: int, color: int, extra: bytes = b"") -> bytes:
    """A PNG of height and width, of rows already packed; color 0 gray, 2 RGB, 4 gray and alpha, 6 RGBA."""
    head = struct.pack(">IIBBBBB", size[1], size[0], bits, color, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + pixels + chunk(b"IEND", b"")


def deep_png(values: Array, color: int, extra: bytes = b"") -> bytes:
    """A PNG of 16 bits per sample."""
    rows, columns = values.shape[:2]
    return png([row.astype(">u2").tobytes() for row in values], (rows, columns), 16, color, extra)


def tiff(values: Array, photometric: int, order: Order = "<", compressed: bool = False, **tags: list[int]) -> bytes:
    """A TIFF of one strip after its tags; `t338=[2]` adds tag 338."""
    rows, columns, samples = (*values.shape, 1)[:3]
    packed = values.astype(values.dtype.newbyteorder(order)).tobytes()
    strip = zlib.compress(packed) if compressed else packed
    entries: dict[int, list[int]] = {
        256: [columns],
        257: [rows],
        258: [values.dtype.itemsize * 8] * samples,
        259: [8 if compressed else 1],
        262: [photometric],
        273: [0],
        277: [samples],
        278: [rows],
        279: [len(strip)],
        339: [{"u": 1, "i": 2, "f": 3}[values.dtype.kind]] * samples,
        **{int(tag[1:]): values for tag, values in tags.items()},
    }
    beyond = 8 + 2 + 12 * len(entries) + 4
    entries[273] = [beyond + sum(4 * len(value) for value in entries.values() if len(value) > 1)]
    table, more = struct.pack(f"{order}H", len(entries)), b""
    for tag, value in sorted(entries.items()):
        packed = struct.pack(f"{order}{len(value)}I", *value)
        table += struct.pack(f"{order}HHI", tag, 4, len(value))
        table += struct.pack(f"{order}I", beyond + len(more)) if len(value) > 1 else packed
        more += packed if len(value) > 1 else b""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}I", 8) + table + b"\0\0\0\0" + more + strip


def exif(orientation: int, order: str = "<") -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + mark + struct.pack(f"{order}IH", 8, 1) + entry + b"\0\0\0\0"


def npy(array: Array) -> bytes:
    stream = BytesIO()
    np.save(stream, array, allow_pickle=array.dtype == object)
    return stream.getvalue()


def empty_png(height: int, width: int) -> bytes:
    """A PNG of one black bit a pixel: 144 megapixels in 18 KB."""
    squeeze = zlib.compressobj(9)
    row = bytes(1 + width // 8)
    pixels = b"".join(squeeze.compress(row) for _ in range(height)) + squeeze.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def cut(data: bytes) -> bytes:
    """A JPEG with half of its pixels, and its end marker."""
    start = data.rindex(b"\xff\xda")
    return data[: (start + len(data)) // 2].rstrip(b"\xff") + data[-2:]
