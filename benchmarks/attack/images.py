"""Images that are cut, flipped or made to hurt, given to `vitral.predict` and to `vitral.check`."""

import io
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import vitral
from benchmarks.attack.case import CPU_SECONDS, Case
from benchmarks.photos import jpeg
from vitral.core.errors import DataError

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {"quality": 85}),
    "progressive": ("JPEG", {"quality": 85, "progressive": True}),
    "png": ("PNG", {}),
    "tiff-lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "tiff-fax": ("TIFF", {"compression": "group3"}),
    "tiff-jpeg": ("TIFF", {"compression": "jpeg"}),
    "tiff-deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "webp": ("WEBP", {"quality": 80}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "avif": ("AVIF", {"quality": 60}),
}

AT_THE_LIMIT = 2.0  # seconds of CPU for a large image that is accepted: about 1.2 are measured


def photo(seed: int, height: int = 96, width: int = 128) -> Image.Image:
    """A picture with structure, so that its entropy-coded data is long."""
    return Image.open(io.BytesIO(jpeg(height, width, seed))).convert("RGB")


def encoded(kind: str, seed: int, height: int = 96, width: int = 128) -> bytes:
    """An intact file of a format."""
    format, options = FORMATS[kind]
    out = io.BytesIO()
    picture = photo(seed, height, width)
    (picture.convert("1") if options.get("compression") == "group3" else picture).save(out, format, **options)
    return out.getvalue()


def predict(path: Path) -> object:
    """What `vitral predict --strict` does with one file."""
    return list(vitral.predict(predictor(), path, strict=True))


@cache
def predictor() -> vitral.Predictor:
    """A tiny model, built once in the parent of all cases."""
    with TemporaryDirectory() as folder:
        vitral.save(vitral.create_model("Ti/16", image_size=32, num_classes=2), folder)
        return vitral.Predictor(folder, engine="eager")


def check(path: Path) -> object:
    """`vitral.check`, which lists errors instead of raising: raised here, so that they count as refused."""
    diagnosis = vitral.check(path, workers=0)
    for finding in diagnosis.findings:
        if finding.severity == "error":
            raise DataError(finding.title, code=f"found.{finding.kind}")
    return diagnosis


def written(data: bytes, name: str) -> Any:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def cut(count: int, seed: int) -> Iterator[Case]:
    """Files cut at a random place after their header; every second JPEG gets an end marker again."""
    draw = np.random.default_rng([seed, 1])
    for number in range(count):
        kind = list(FORMATS)[number % len(FORMATS)]
        data = encoded(kind, number % 7)
        end = int(draw.integers(len(data) // 3, len(data) * 9 // 10))
        ending = b"\xff\xd9" if kind in {"jpeg", "progressive"} and number % 2 else b""
        yield Case(
            "images cut", f"{kind} {number} at {end}", written(data[:end] + ending, f"a.{suffix(kind)}"), predict
        )


def flipped(count: int, seed: int) -> Iterator[Case]:
    """Files with a few random bytes replaced; only checksummed formats can know."""
    draw = np.random.default_rng([seed, 2])
    for number in range(count):
        kind = list(FORMATS)[number % len(FORMATS)]
        data = bytearray(encoded(kind, number % 7))
        for place in draw.integers(0, len(data), int(draw.integers(1, 6))):
            data[place] ^= int(draw.integers(1, 256))
        yield Case("images flipped", f"{kind} {number}", written(bytes(data), f"a.{suffix(kind)}"), predict, "either")


def checksums(count: int, seed: int) -> Iterator[Case]:
    """One flipped byte inside the pixels of a PNG: its checksum is wrong."""
    draw = np.random.default_rng([seed, 3])
    for number in range(count):
        data = bytearray(encoded("png", number % 7))
        start = data.index(b"IDAT") + 4
        data[int(draw.integers(start, len(data) - 16))] ^= 1 << int(draw.integers(8))
        yield Case("images flipped", f"checksum of png {number}", written(bytes(data), "a.png"), predict)


def suffix(kind: str) -> str:
    return {"JPEG": "jpg", "TIFF": "tif"}.get(FORMATS[kind][0], FORMATS[kind][0].lower())


def png(width: int, height: int, data: bytes, depth: int = 8, color: int = 2) -> bytes:
    """A PNG that declares a size and holds any data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def flat(mode: str, side: int, format: str, **options: Any) -> bytes:
    """A square of one color, which compresses a thousandfold."""
    out = io.BytesIO()
    Image.new(mode, (side, side)).save(out, format, **options)
    return out.getvalue()


def scans(count: int, width: int = 4000) -> bytes:
    """A progressive JPEG that repeats its last scan: each one costs a pass over all coefficients."""
    out = io.BytesIO()
    Image.new("RGB", (width, width * 3 // 4), (90, 120, 60)).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + b"\xff\xd9"


def segments(count: int) -> bytes:
    """A JPEG with many comment segments in front."""
    data = encoded("jpeg", 0)
    return data[:2] + (b"\xff\xfe\xff\xff" + bytes(65_533)) * count + data[2:]


def webp(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "WEBP", lossless=True)
    return out.getvalue()


def animation(frames: int) -> bytes:
    out = io.BytesIO()
    pages = [Image.new("L", (64, 64), shade % 256) for shade in range(frames)]
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    return out.getvalue()


def tiff_directories(count: int) -> bytes:
    """A TIFF whose directories form a ring of many entries."""
    tags = [
        (256, 3, 1, 8),
        (257, 3, 1, 8),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 1, 8),
        (279, 4, 1, 64),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    size = 2 + len(entries) + 4
    found = b"II*\x00" + struct.pack("<I", 8)
    for number in range(count):
        following = 8 + size * ((number + 1) % count)
        found += struct.pack("<H", len(tags)) + entries + struct.pack("<I", following)
    return found


def hostile() -> Iterator[Case]:
    """Files made to cost time or memory: each is refused, or is cheap."""
    bombs = {
        "jpeg of 0xFF, 50 MB": ("a.jpg", b"\xff\xd8" + b"\xff" * 50_000_000),
        "jpeg of 2,000 scans": ("a.jpg", scans(2000)),
        "jpeg of 50 scans": ("a.jpg", scans(40, 5740)),
        "png of zeros, 6,080 x 6,080": ("a.png", flat("RGB", 6080, "PNG")),
        "fax of 6,080 x 6,080": ("a.tif", flat("1", 6080, "TIFF", compression="group3")),
        "jpeg of 800 comments": ("a.jpg", segments(800)),
        "png that declares 60,000 x 60,000": ("a.png", png(60_000, 60_000, zlib.compress(bytes(10_000)))),
        "png of zeros, 20,000 x 20,000": ("a.png", png(20_000, 20_000, zlib.compress(bytes(20_000_000), 9))),
        "png of 16 bits, 9,000 x 9,000": ("a.png", png(9000, 9000, zlib.compress(bytes(30_000_000), 9), 16, 6)),
        "webp of 16,383 x 16,383": ("a.webp", webp(16_383, 16_383)),
        "tiff of 3,000 pages": ("a.tif", animation(3000)),
        "tiff with a ring of 50,000 directories": ("a.tif", tiff_directories(50_000)),
        "empty file": ("a.jpg", b""),
        "text": ("a.jpg", b"not an image\n" * 100),
    }
    for name, (file, data) in bombs.items():
        seconds = AT_THE_LIMIT if "6,080" in name else CPU_SECONDS
        yield Case("hostile images", name, written(data, file), predict, "either", seconds)
        yield Case("hostile images", f"check: {name}", in_classes(data, file), check, "either", seconds)


def in_classes(data: bytes, name: str) -> Any:
    """The file among good ones, in folders of classes."""

    def make(folder: Path) -> Path:
        for label in ("one", "two"):
            (folder / "train" / label).mkdir(parents=True)
            for number in range(2):
                (folder / "train" / label / f"{number}.jpg").write_bytes(encoded("jpeg", number))
        (folder / "train/one" / name).write_bytes(data)
        return folder

    return make


def cases(seed: int, share: float) -> Iterator[Case]:
    """All cases with images; `share` scales the random ones."""
    yield from cut(int(1600 * share), seed)
    yield from flipped(int(1600 * share), seed)
    yield from checksums(int(300 * share), seed)
    yield from hostile()
