"""Images that are cut, flipped or made to hurt, given to `vitral.predict` and to `vitral.check`."""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import vitral
from benchmarks.attack.case import Case
from benchmarks.photos import jpeg
from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.decoding.budget import cost_limit, decode_cost
from vitral.data.decoding.header import ImageFormat, pillow_reader
from vitral.data.decoding.pixels import is_16bit_color

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
    """A tiny model, built once in the parent of all cases. It decodes a JPEG at full scale, which is the dearest."""
    transform = vitral.Preprocessing(image_size=Size(32, 32), decoding=vitral.Decoding(jpeg_scale="full"))
    with TemporaryDirectory() as folder:
        vitral.save(vitral.create_model("Ti/16", image_size=32, num_classes=2), folder, transform=transform)
        return vitral.Predictor(folder, engine="eager")


def warm_up() -> None:
    """Answer for a small image, and check one."""
    with TemporaryDirectory() as folder:
        predict(written(encoded("jpeg", 0), "a.jpg")(Path(folder)))
        with suppress(DataError):
            check(in_classes(encoded("png", 0), "a.png")(Path(folder)))


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


def png(width: int, height: int, data: bytes, depth: int = 8, color: int = 2, interlaced: bool = False) -> bytes:
    """A PNG that declares a size and holds any data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
PAETH = b"\4"  # the filter of a row that takes longest


def png_rows(side: int, pixel_bytes: int, interlaced: bool) -> bytes:
    """The rows of a square PNG of zeros, as they are compressed: in the passes of Adam7 if it is interlaced."""
    rows = [(-(-(side - x) // across), -(-(side - y) // down)) for x, y, across, down in PASSES]
    if not interlaced:
        rows = [(side, side)]
    return zlib.compress(b"".join((PAETH + bytes(width * pixel_bytes)) * height for width, height in rows), 9)


def flat(mode: str, side: int, format: str, **options: Any) -> bytes:
    """A square of one color, which compresses a thousandfold."""
    out = io.BytesIO()
    Image.new(mode, (side, side)).save(out, format, **options)
    return out.getvalue()


def scans(count: int, width: int = 4000, height: int = 0, mode: str = "RGB") -> bytes:
    """A progressive JPEG that repeats its last scan: each one costs a pass over all coefficients."""
    out = io.BytesIO()
    Image.new(mode, (width, height or width * 3 // 4), "gray").save(out, "JPEG", progressive=True)
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


def tiff(side: int, tile: int, compression: int, content: bytes, length: int) -> bytes:
    """A gray TIFF of square tiles, or of strips if `tile` is negative, that are all the same bytes of the file."""
    rows, count = abs(tile), side // abs(tile) if tile < 0 else (side // tile) ** 2
    tags = {256: side, 257: side, 258: 8, 259: compression, 262: 1, 277: 1}
    tags |= {273: 0, 278: rows, 279: 0} if tile < 0 else {322: rows, 323: rows, 324: 0, 325: 0}
    lists = 8 + 2 + 12 * len(tags) + 4
    places = {273: lists, 324: lists, 279: lists + 4 * count, 325: lists + 4 * count}
    entries = b"".join(
        struct.pack("<HHII", tag, 4, count if tag in places else 1, places.get(tag, value))
        for tag, value in tags.items()
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    return head + struct.pack(f"<{2 * count}I", *[lists + 8 * count] * count, *[length] * count) + content


def hostile() -> Iterator[Case]:
    """Files made to cost time or memory: each is refused, or is cheap."""
    bombs = {
        "jpeg of 0xFF, 50 MB": ("a.jpg", b"\xff\xd8" + b"\xff" * 50_000_000),
        "jpeg of 2,000 scans": ("a.jpg", scans(2000)),
        "jpeg of 50 scans": ("a.jpg", scans(40, 5740)),
        "png of zeros, 6,080 x 6,080": ("a.png", flat("RGB", 6080, "PNG")),
        "jpeg of 800 comments": ("a.jpg", segments(800)),
        "png that declares 60,000 x 60,000": ("a.png", png(60_000, 60_000, zlib.compress(bytes(10_000)))),
        "png of zeros, 20,000 x 20,000": ("a.png", png(20_000, 20_000, zlib.compress(bytes(20_000_000), 9))),
        "png of 16 bits, 9,000 x 9,000": ("a.png", png(9000, 9000, zlib.compress(bytes(30_000_000), 9), 16, 6)),
        "webp of 16,383 x 16,383": ("a.webp", webp(16_383, 16_383)),
        "tiff of 3,000 pages": ("a.tif", animation(3000)),
        "tiff with a ring of 50,000 directories": ("a.tif", tiff_directories(50_000)),
        "tiff of 65,536 tiles that share 1 MB": (
            "a.tif",
            tiff(4096, 16, 8, zlib.compress(bytes(256)), 1 << 20) + bytes(1 << 20),
        ),
        "tiff of strips of 90 scans": ("a.tif", tiff(5888, -256, 7, strip := scans(80, 5888, 256, "L"), len(strip))),
        "empty file": ("a.jpg", b""),
        "text": ("a.jpg", b"not an image\n" * 100),
    }
    for name, (file, data) in (bombs | dict(at_the_limit())).items():
        yield Case("hostile images", name, written(data, file), predict, "either")
        yield Case("hostile images", f"check: {name}", in_classes(data, file), check, "either")


FLAT: dict[str, tuple[ImageFormat, str, dict[str, Any]]] = {
    "jpeg": ("JPEG", "RGB", {}),
    "progressive jpeg": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "cmyk jpeg": ("JPEG", "CMYK", {}),
    "progressive cmyk jpeg": ("JPEG", "CMYK", {"progressive": True}),
    "png of color": ("PNG", "RGB", {}),
    "png with alpha": ("PNG", "RGBA", {}),
    "gray png": ("PNG", "L", {}),
    "gray png of 16 bits": ("PNG", "I;16", {}),
    "palette": ("GIF", "P", {}),
    "fax": ("TIFF", "1", {"compression": "group3"}),
    "deflated tiff": ("TIFF", "RGB", {"compression": "tiff_adobe_deflate"}),
    "cmyk tiff": ("TIFF", "CMYK", {"compression": "tiff_adobe_deflate"}),
    "tiff of floats": ("TIFF", "F", {"compression": "tiff_adobe_deflate"}),
    "webp": ("WEBP", "RGB", {"lossless": True, "method": 0}),
    "avif": ("AVIF", "RGB", {"speed": 10, "subsampling": "4:4:4"}),
}


# Color type, mode, bits of a sample, bytes of a pixel, interlaced.
PNGS = [
    (color, mode, depth, depth // 8 * channels, interlaced)
    for color, mode, depth, channels in (
        (0, "L", 8, 1),
        (2, "RGB", 8, 3),
        (6, "RGBA", 8, 4),
        (2, "RGB;16", 16, 3),
        (6, "RGBA;16", 16, 4),
    )
    for interlaced in (False, True)
]


def at_the_limit() -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Of each format and mode, the largest flat square that is not refused."""
    for name, (format, mode, options) in FLAT.items():
        small = flat(mode, 1000, format, **options)
        image = pillow_reader(small, name, format)
        needed = decode_cost(image, small, image.mode + ";16" * is_16bit_color(image))
        limit = cost_limit(small, 1.0)
        share = max(needed.memory / limit.memory, needed.seconds / limit.seconds, 1 / 50)
        side = int(1000 * share**-0.5)
        yield f"{name} of {side} x {side}, at the limit", (f"a.{format.lower()}", flat(mode, side, format, **options))
    for color, mode, depth, pixel_bytes, interlaced in PNGS:
        small = png(1000, 1000, b"", depth, color, interlaced)
        needed, limit = decode_cost(pillow_reader(small, "it", "PNG"), small, mode), cost_limit(small, 1.0)
        side = int(1000 * max(needed.memory / limit.memory, needed.seconds / limit.seconds) ** -0.5)
        data = png(side, side, png_rows(side, pixel_bytes, interlaced), depth, color, interlaced)
        yield f"png of {mode}{', interlaced' * interlaced}, {side} x {side}, at the limit", ("a.png", data)


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
    """Images with random damage; `share` scales their number."""
    yield from cut(int(1600 * share), seed)
    yield from flipped(int(1600 * share), seed)
    yield from checksums(int(300 * share), seed)
