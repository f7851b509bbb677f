"""Budgets of decoding, checked before any work: the structure of a file, the memory and the time that it will take.

A hostile file of a few kilobytes may cost seconds and gigabytes. The structure of a file is walked in a few steps, and
the memory follows from its size, mode and format. A large file may take more than a small one: a photo of 50 million
pixels has megabytes, a bomb has none.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from vitral.core.config import Size
from vitral.data.decoding.avif import is_deep, read_sizes

# What any image may take, and what each byte of its file adds: 300 MB and 1 s of CPU for a file of 2 MB, with the 0.2 s
# that `vitral check` takes beside decoding. A photo of 50 million pixels has 10 to 150 MB.
MEMORY, MEMORY_PER_BYTE = 268_000_000, 16
SECONDS, SECONDS_PER_BYTE = 0.64, 80e-9
MAX_STRAY = 65_536  # bytes between the segments of a JPEG
MAX_SEGMENTS = 2_000  # of a JPEG before its pixels
MAX_EXIF_SEGMENTS = 16  # Pillow joins them one by one
MAX_SCANS = 1_000
MAX_CHUNKS = 100_000  # of a PNG
MAX_PROFILES = 16  # of color in a PNG: Pillow inflates each, up to 1 MB, and uses none
MAX_BLOCKS = 65_536  # and extensions of a GIF before its first frame: 16 MB of comments
MAX_TAGS = 4_096  # of a TIFF
MAX_STRIPS = 65_536
COMPRESSION, STRIPS, STRIP_BYTES, TILES, TILE_BYTES = 259, 273, 279, 324, 325  # tags of a TIFF
BITS, SAMPLES, STRIP_ROWS, PLANES, TILE_WIDTH, TILE_HEIGHT = 258, 277, 278, 284, 322, 323
JPEG_COMPRESSIONS = {6, 7}
SHARED_BYTES = 64 * 2**20  # of strips and tiles beyond those of the file: equal ones may be stored once


class Cost(NamedTuple):
    """What decoding takes: bytes at its peak, seconds of CPU."""

    memory: int
    seconds: float


# Bytes and nanoseconds that a pixel takes in decoding and in making a thumbnail, as measured; at the peak, and for the
# dearest kind of file.
PIXEL_COSTS = {
    "1": (7, 17),
    "L": (7, 17),
    "P": (9, 18),
    "RGB": (8, 28),
    "CMYK": (12, 42),
    "I;16": (9, 20),
    "F": (24, 43),
    "I": (13, 28),
}
WITH_ALPHA, DEEP_COLOR, DEEP_ALPHA, DEEP_CMYK = (13, 38), (17, 72), (18, 100), (24, 105)
KEYED = (18, 60)  # one value means transparent, in an image without a palette: each pixel is compared with it
WEBP_PIXEL, DENSE_WEBP_PIXEL = (12, 28), (13, 30)  # of color alone; lossless, or with alpha
AVIF_PIXEL, DEEP_AVIF_PIXEL, AVIF_ALPHA = (11, 24), (14, 40), (2, 6)
INTERLACED = 1.5  # times the nanoseconds of a PNG whose rows follow each other
CHUNK_NANOSECONDS = 3_500  # for each chunk of a PNG
PART_NANOSECONDS = 8_000  # for each strip or tile of a TIFF
PADDING_NANOSECONDS = 3  # for each byte of a tile that lies outside of the image
RUN_NANOSECONDS = 200  # for each byte of a BMP of runs, which Pillow decodes in Python
JPEG_PIXEL, CMYK_JPEG_PIXEL = (3, 10), (7, 22)  # CMYK is decoded twice: Pillow knows which files are inverted
ODD_JPEG_PIXEL = (8, 14)  # whose color is reduced in a way that libjpeg-turbo leaves to Pillow
USUAL_FACTORS = {(1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (1, 4)}  # of the brightness, where those of color are 1
TURNED_BYTES = 3  # more for each pixel of a CMYK JPEG that is turned upright
SCAN_NANOSECONDS = 0.9  # for each pixel and each of several scans
# For each coefficient of a scan by arithmetic coding: a few bytes may hold millions, unlike those of Huffman's codes.
ARITHMETIC_NANOSECONDS = 6
ARITHMETIC = {*range(0xC9, 0xD0)} - {0xCC}  # markers of such frames
SCAN = b"\xff\xda"


def check_structure(data: bytes, kind: str) -> Size | None:
    """Walk a file; ValueError where it would take too long. The size, where Pillow allocates memory for it at once."""
    walk: Callable[[bytes], Size | None] | None = WALKS.get(kind)
    try:
        return walk(data) if walk else None
    except (struct.error, IndexError, OverflowError):  # past the end of the file: the decoder says what is missing
        return None


def _walk_jpeg(data: bytes) -> None:
    for _ in _jpeg_markers(data):
        pass


def _jpeg_markers(data: bytes) -> Iterator[int]:
    """The markers of the segments before the first scan; ValueError where they are too many."""
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
        if marker in {0xFF, 0x00, 0x01, *range(0xD0, 0xDA)}:
            place, stray = start + 1 + (marker != 0xFF), stray + 1
            continue
        segments += 1
        exif += data[start + 4 : start + 8] == b"Exif"
        if segments > MAX_SEGMENTS or exif > MAX_EXIF_SEGMENTS:
            raise ValueError(f"more than {MAX_SEGMENTS:,} segments, or {MAX_EXIF_SEGMENTS} of EXIF")
        yield marker
        place = start + 2 + max(int.from_bytes(data[start + 2 : start + 4], "big"), 2)


def _walk_png(data: bytes) -> None:
    profiles = 0
    for number, kind in enumerate(_png_chunks(data)):
        profiles += kind == b"iCCP"
        if number >= MAX_CHUNKS:
            raise ValueError(f"more than {MAX_CHUNKS:,} chunks")
        if profiles > MAX_PROFILES:
            raise ValueError(f"more than {MAX_PROFILES} color profiles")


def _png_chunks(data: bytes) -> Iterator[bytes]:
    """The kinds of the chunks before the end."""
    place, kind = 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, place)
        place += 12 + length
        yield kind


def _walk_gif(data: bytes) -> None:
    place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 128 else 0)
    blocks = 0
    while data[place] == 0x21:
        place, blocks = place + 2, blocks + 1
        while data[place] and blocks <= MAX_BLOCKS:
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
    lists = []
    for _ in range(tags):
        tag, _, count = struct.unpack_from(f"{order}HHQ" if big else f"{order}HHI", data, place)
        if tag in {STRIPS, STRIP_BYTES, TILES, TILE_BYTES}:
            lists.append(tag)
            if count > MAX_STRIPS:
                raise ValueError(f"{count:,} strips or tiles, the limit is {MAX_STRIPS:,}")
        place += 20 if big else 12
    if sum(tag in {STRIPS, TILES} for tag in lists) > 1 or sum(tag in {STRIP_BYTES, TILE_BYTES} for tag in lists) > 1:
        raise ValueError("more than one list of its strips or tiles")  # of which Pillow and libtiff may take another


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
    return cost_limit(data, ratio).memory


def cost_limit(data: bytes, ratio: float) -> Cost:
    """What decoding a file may take, for a limit of pixels that is `ratio` times the default."""
    more = max(ratio, 1.0)
    return Cost(int((MEMORY + MEMORY_PER_BYTE * len(data)) * more), (SECONDS + SECONDS_PER_BYTE * len(data)) * more)


def decode_cost(image: ImageFile, data: bytes, mode: str, turned: bool = False) -> Cost:
    """What decoding an image takes; ValueError for a JPEG of too many scans, or a TIFF whose strips overlap."""
    pixels = image.width * image.height
    if isinstance(image, JpegImageFile):
        return _jpeg_cost(image, data, pixels, turned)
    memory, nanoseconds = _pixel_cost(image, data, mode)
    more = Cost(0, 0.0)
    if isinstance(image, TiffImageFile):
        nanoseconds += SCAN_NANOSECONDS * _strip_scans(image, data)
        more = _parts_cost(image, pixels)
    elif image.format == "PNG":
        nanoseconds *= INTERLACED if image.info.get("interlace") else 1
        more = Cost(0, CHUNK_NANOSECONDS * 1e-9 * _count_chunks(data))
    elif image.tile and image.tile[0].codec_name == "bmp_rle":
        more = Cost(0, RUN_NANOSECONDS * 1e-9 * len(data))
    return Cost(pixels * memory + more.memory, pixels * nanoseconds * 1e-9 + more.seconds)


def _count_chunks(data: bytes) -> int:
    count = 0
    with suppress(struct.error):  # cut off: the decoder says so
        for _ in _png_chunks(data):
            count += 1
    return count


def _parts_cost(image: TiffImageFile, pixels: int) -> Cost:
    """What the strips or tiles of a TIFF take beside its pixels: one is held as stored, and tiles may be larger."""
    samples = 1 if _number(image, PLANES, 1) == 2 else _number(image, SAMPLES, 1)
    if TILE_WIDTH in image.tag_v2 or TILE_HEIGHT in image.tag_v2:
        width, height = _number(image, TILE_WIDTH, 1), _number(image, TILE_HEIGHT, 1)
    else:
        width, height = image.width, min(_number(image, STRIP_ROWS, image.height), image.height)
    count = -(-image.width // max(width, 1)) * -(-image.height // max(height, 1))
    depth = _number(image, BITS, 1)
    part, whole = width * height * samples * depth // 8, pixels * samples * depth // 8
    padding = max(count * part - whole, 0)
    return Cost(part, (count * PART_NANOSECONDS + padding * PADDING_NANOSECONDS) * 1e-9)


def _number(image: TiffImageFile, tag: int, default: int) -> int:
    """A tag of one number, or the largest of several; in a damaged file it may be anything."""
    found = image.tag_v2.get(tag, default)
    numbers = [each for each in (found if isinstance(found, tuple) else (found,)) if isinstance(each, int)]
    return max([0, *numbers]) if numbers else default


def _pixel_cost(image: ImageFile, data: bytes, mode: str) -> tuple[int, float]:
    if image.format == "WEBP":
        return DENSE_WEBP_PIXEL if image.mode == "RGBA" or b"VP8L" in data else WEBP_PIXEL
    if image.format == "AVIF":
        memory, nanoseconds = DEEP_AVIF_PIXEL if is_deep(data) else AVIF_PIXEL
        return (memory + AVIF_ALPHA[0], nanoseconds + AVIF_ALPHA[1]) if image.mode == "RGBA" else (memory, nanoseconds)
    alpha = mode.startswith(("LA", "La", "PA", "RGBA", "RGBa")) or "transparency" in image.info
    if mode.endswith(";16") and not mode.startswith("I"):
        return DEEP_CMYK if mode.startswith("CMYK") else DEEP_ALPHA if alpha else DEEP_COLOR
    if alpha and mode in {"1", "L", "RGB", "I;16"}:
        return KEYED
    return WITH_ALPHA if alpha else PIXEL_COSTS.get(mode, PIXEL_COSTS["RGB"])


def _strip_scans(image: TiffImageFile, data: bytes) -> int:
    """The most scans of a strip or tile, if it is a JPEG; ValueError where all strips have more bytes than the file."""
    starts, lengths = (_numbers(image, STRIPS, TILES), _numbers(image, STRIP_BYTES, TILE_BYTES))
    if sum(lengths) > 2 * len(data) + SHARED_BYTES:
        raise ValueError(f"strips or tiles of {sum(lengths):,} bytes in a file of {len(data):,}")
    if image.tag_v2.get(COMPRESSION) not in JPEG_COMPRESSIONS:
        return 0
    scans = _places(data, SCAN)
    parts = zip(starts, lengths, strict=False)
    return max((bisect_left(scans, start + size) - bisect_left(scans, start) for start, size in parts), default=0)


def _numbers(image: TiffImageFile, *tags: int) -> list[int]:
    """The numbers of the first of some tags that a TIFF has; in a damaged file they may be anything."""
    found = next((image.tag_v2[tag] for tag in tags if tag in image.tag_v2), ())
    return [max(each, 0) for each in found if isinstance(each, int)] if isinstance(found, tuple) else []


def _places(data: bytes, part: bytes) -> list[int]:
    """Where a part of a file begins, each time."""
    found = [data.find(part)]
    while found[-1] >= 0:
        found.append(data.find(part, found[-1] + 1))
    return found[:-1]


def _jpeg_cost(image: JpegImageFile, data: bytes, pixels: int, turned: bool) -> Cost:
    """The pixels, and all coefficients where they come in more than one scan."""
    scans = data.count(SCAN)  # also those of thumbnails
    if scans > MAX_SCANS:
        raise ValueError(f"{scans:,} scans, the limit is {MAX_SCANS:,}")
    several = scans if scans > 1 else 0
    factors = [across * down for _, across, down, _ in image.layer]
    samples = pixels * sum(factors) / max([1, *factors])  # 0 or none is damage: the decoder says so
    scanning = SCAN_NANOSECONDS * several
    if _is_arithmetic(data):
        scanning += ARITHMETIC_NANOSECONDS * _coefficients(image, data)
    (memory, nanoseconds), times = (CMYK_JPEG_PIXEL, 2) if image.mode == "CMYK" else (JPEG_PIXEL, 1)
    each = [(across, down) for _, across, down, _ in image.layer]
    if len(each) == 3 and not (each[0] in USUAL_FACTORS and {*each[1:]} == {(1, 1)}):
        memory, nanoseconds = ODD_JPEG_PIXEL
    if image.mode == "CMYK" and turned:
        memory += TURNED_BYTES
    coefficients = 2 * samples if several else 0
    return Cost(int(memory * pixels + coefficients), pixels * (nanoseconds + times * scanning) * 1e-9)


def _is_arithmetic(data: bytes) -> bool:
    try:
        return any(marker in ARITHMETIC for marker in _jpeg_markers(data))
    except IndexError:  # past the end of the file
        return False


def _coefficients(image: JpegImageFile, data: bytes) -> float:
    """The coefficients of all scans, for each pixel."""
    largest = max([1, *(across * down for _, across, down, _ in image.layer)])
    shares = {number: across * down / largest for number, across, down, _ in image.layer}
    found = 0.0
    for place in _places(data, SCAN):
        scan = data[place + 4 : place + 15]  # how many components, two bytes for each, the first and last coefficient
        end = 1 + 2 * min(scan[0], 4) if scan else 0
        band = scan[end : end + 2]
        if len(band) == 2:
            share = sum(shares.get(number, 1.0) for number in scan[1:end:2])
            found += share * max(band[1] - band[0] + 1, 0) / 64
    return found
