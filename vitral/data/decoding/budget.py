"""Budgets of decoding, checked before any work: the structure of a file, the memory and the time that it will take.

A hostile file of a few kilobytes may cost seconds and gigabytes. The structure of a file is walked in a few steps, and
the memory follows from its size, mode and format. A large file may take more than a small one: a photo of 50 million
pixels has megabytes, a bomb has none.
"""

import struct
from collections.abc import Callable

from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from vitral.core.config import Size
from vitral.data.decoding.avif import read_sizes

MEMORY = 300_000_000  # bytes that any image may take to decode
MEMORY_PER_BYTE = 16  # and more for each byte of its file: a progressive photo of 50 million pixels has 10 MB
MAX_STRAY = 65_536  # bytes between the segments of a JPEG
MAX_SEGMENTS = 2_000  # of a JPEG before its pixels
MAX_EXIF_SEGMENTS = 16  # Pillow joins them one by one
MAX_SCANS = 1_000
MAX_SCANNED = 1_500_000_000  # pixels times scans of a JPEG: a second; more for a higher limit of pixels
MAX_CHUNKS = 100_000  # of a PNG
MAX_BLOCKS = 65_536  # of a GIF before its first frame: 16 MB of comments
MAX_TAGS = 4_096  # of a TIFF
MAX_STRIPS = 65_536

# Bytes that a pixel takes at the peak of decoding and of making a thumbnail, as measured.
PIXEL_BYTES = {"1": 8, "L": 8, "P": 9, "RGB": 8, "CMYK": 12, "I;16": 12, "F": 24}
WITH_ALPHA, DEEP_COLOR = 13, 17
WEBP_BYTES, AVIF_BYTES = 17, 20  # the whole canvas is held several times


def check_structure(data: bytes, kind: str) -> Size | None:
    """Walk a file; ValueError where it would take too long. The size, where Pillow allocates memory for it at once."""
    walk: Callable[[bytes], Size | None] | None = WALKS.get(kind)
    try:
        return walk(data) if walk else None
    except (struct.error, IndexError, OverflowError):  # past the end of the file: the decoder says what is missing
        return None


def _walk_jpeg(data: bytes) -> None:
    place, stray, segments, exif = 2, 0, 0, 0
    while True:
        start = data.find(b"\xff", place)
        stray += (start if start >= 0 else len(data)) - place
        if stray > MAX_STRAY:
            raise ValueError(f"more than {MAX_STRAY:,} bytes between its segments")
        if start < 0:
            return
        marker = data[start + 1]
        if marker == 0xDA:
            break
        if marker in {0xFF, 0x00, *range(0xD0, 0xDA)}:
            place, stray = start + 1 + (marker != 0xFF), stray + 1
            continue
        segments += 1
        exif += data[start + 4 : start + 8] == b"Exif"
        if segments > MAX_SEGMENTS or exif > MAX_EXIF_SEGMENTS:
            raise ValueError(f"more than {MAX_SEGMENTS:,} segments, or {MAX_EXIF_SEGMENTS} of EXIF")
        place = start + 2 + max(int.from_bytes(data[start + 2 : start + 4], "big"), 2)


def _walk_png(data: bytes) -> None:
    place = 8
    for _ in range(MAX_CHUNKS):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IEND":
            return
        place += 12 + length
    raise ValueError(f"more than {MAX_CHUNKS:,} chunks")


def _walk_gif(data: bytes) -> None:
    place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 128 else 0)
    blocks = 0
    while data[place] == 0x21:
        place += 2
        while data[place]:
            place, blocks = place + 1 + data[place], blocks + 1
            if blocks > MAX_BLOCKS:
                raise ValueError(f"more than {MAX_BLOCKS:,} blocks before its first frame")
        place += 1


def _walk_tiff(data: bytes) -> None:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in {b"+\0", b"\0+"}
    (place,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", data, 8 if big else 4)
    (tags,) = struct.unpack_from(f"{order}Q" if big else f"{order}H", data, place)
    if tags > MAX_TAGS:
        raise ValueError(f"{tags:,} tags, the limit is {MAX_TAGS:,}")
    place += 8 if big else 2
    for _ in range(tags):
        tag, _, count = struct.unpack_from(f"{order}HHQ" if big else f"{order}HHI", data, place)
        if tag in {273, 279, 324, 325} and count > MAX_STRIPS:
            raise ValueError(f"{count:,} strips or tiles, the limit is {MAX_STRIPS:,}")
        place += 20 if big else 12


def _walk_webp(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        case _:
            return None
    return Size(height, width)


def _walk_avif(data: bytes) -> Size | None:
    try:
        sizes = read_sizes(data)
    except ValueError:  # damaged: the decoder says how
        return None
    return max((*sizes.coded, *sizes.declared), key=lambda size: size.height * size.width, default=None)


WALKS: dict[str, Callable[[bytes], Size | None]] = {
    "JPEG": _walk_jpeg,
    "PNG": _walk_png,
    "GIF": _walk_gif,
    "TIFF": _walk_tiff,
    "WEBP": _walk_webp,
    "AVIF": _walk_avif,
}


def memory_limit(data: bytes, ratio: float) -> int:
    """The bytes that decoding a file may take, for a limit of pixels that is `ratio` times the default."""
    return int((MEMORY + MEMORY_PER_BYTE * len(data)) * max(ratio, 1.0))


def decode_memory(image: ImageFile, data: bytes, mode: str, ratio: float) -> int:
    """The bytes that decoding an image takes at its peak; ValueError where it takes too long.

    The limit of pixels is `ratio` times the default.
    """
    pixels = image.width * image.height
    if isinstance(image, JpegImageFile):
        return _jpeg_memory(image, data, pixels, MAX_SCANNED * max(ratio, 1.0))
    if image.format in {"WEBP", "AVIF"}:
        return pixels * (WEBP_BYTES if image.format == "WEBP" else AVIF_BYTES)
    if mode.endswith(";16") and not mode.startswith("I"):
        return pixels * DEEP_COLOR
    alpha = mode in {"LA", "La", "PA", "RGBA", "RGBa"} or "transparency" in image.info
    return pixels * (WITH_ALPHA if alpha else PIXEL_BYTES.get(mode, 8))


def _jpeg_memory(image: JpegImageFile, data: bytes, pixels: int, max_scanned: float) -> int:
    """The pixels, and all coefficients where they come in more than one scan."""
    scans = data.count(b"\xff\xda")  # also those of thumbnails
    if scans > MAX_SCANS or (scans > 1 and scans * pixels > max_scanned):
        raise ValueError(f"{scans:,} scans of {pixels:,} pixels take too long")
    factors = [across * down for _, across, down, _ in image.layer]
    samples = pixels * sum(factors) / max(1, *factors)  # 0 is damage: the decoder says so
    return int(3 * pixels + (2 * samples if scans > 1 else 0))
