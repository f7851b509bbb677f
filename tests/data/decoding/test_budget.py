"""Hostile images are refused before any work, and large ones of honest size are not."""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from PIL.ImageFile import ImageFile

from tests.data.pictures import encoded, noise
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.budget import cost_limit, decode_cost
from vitral.data.decoding.decode import FULL_SIZE, decode, open_image
from vitral.data.decoding.header import Decoding

JPEG = encoded(noise(64, 64, 3).astype(np.uint8), "JPEG")
PROGRESSIVE = encoded(np.full((64, 64), 128, np.uint8), "JPEG", progressive=True)
GIF = encoded(Image.new("P", (64, 64)), "GIF")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def flat_png(side: int, depth: int, color: int, before: bytes = b"") -> bytes:
    """A PNG of zeros."""
    row = 1 + side * {0: 1, 2: 3, 6: 4}[color] * depth // 8
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, color, 0, 0, 0))
    pack = zlib.compressobj(1)
    pixels = b"".join(pack.compress(bytes(row)) for _ in range(side)) + pack.flush()
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def many_scans(count: int) -> bytes:
    at = PROGRESSIVE.rindex(b"\xff\xda")
    return PROGRESSIVE[:-2] + PROGRESSIVE[at:-2] * count + PROGRESSIVE[-2:]


def many_strips(count: int) -> bytes:
    tags = [(256, 3, 1, 8), (257, 4, 1, count), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, count, 0)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


def shared_strips(count: int, length: int) -> bytes:
    """A TIFF of strips that are all the same bytes of the file."""
    lists = struct.pack(f"<{2 * count}I", *[8192 + 8 * count] * count, *[length] * count)
    size = {256: 8 * count, 257: count, 258: 8, 259: 8, 262: 1, 273: 8192, 277: 1, 278: 1, 279: 8192 + 4 * count}
    entries = b"".join(
        struct.pack("<HHII", tag, 4, count if tag in {273, 279} else 1, value) for tag, value in size.items()
    )
    head = (b"II*\0\x08\0\0\0" + struct.pack("<H", len(size)) + entries).ljust(8192, b"\0")
    return head + lists + zlib.compress(bytes(8 * count)).ljust(length, b"\0")


COMPLEX: dict[str, Callable[[], bytes]] = {
    "a JPEG of 0xFF": lambda: b"\xff\xd8" + b"\xff" * 200_000,
    "a JPEG of zeros": lambda: b"\xff\xd8\xff" + bytes(200_000),
    "comments": lambda: JPEG[:2] + b"\xff\xfe\0\2" * 3_000 + JPEG[2:],
    "EXIF in many segments": lambda: JPEG[:2] + b"\xff\xe1\0\x0aExif\0\0.." * 20 + JPEG[2:],
    "scans": lambda: many_scans(1_001),
    "chunks": lambda: flat_png(16, 8, 2, chunk(b"tEXt", b"a\0b") * 100_001),
    "color profiles of a PNG": lambda: flat_png(16, 8, 2, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(100))) * 17),
    "extensions of a GIF": lambda: GIF[: GIF.index(b",")] + b"\x21\xfe\0" * 70_000 + GIF[GIF.index(b",") :],
    "blocks of a GIF": lambda: (
        GIF[: GIF.index(b",")] + b"\x21\xfe" + b"\x01a" * 70_000 + b"\0" + GIF[GIF.index(b",") :]
    ),
    "strips": lambda: many_strips(70_000),
    "strips that share their bytes": lambda: shared_strips(1_000, 100_000),
    "two lists of strips": lambda: many_strips(8).replace(struct.pack("<HH", 262, 3), struct.pack("<HH", 273, 4)),
}


@pytest.mark.parametrize("kind", COMPLEX)
def test_a_file_that_takes_long_is_refused_before_it_is_decoded(kind: str) -> None:
    with raises("data.too_complex", "it"):
        open_image(COMPLEX[kind](), "it", Decoding())


def test_more_scans_are_allowed_with_a_higher_limit_of_pixels() -> None:
    flat = encoded(Image.new("L", (6_000, 6_000)), "JPEG", progressive=True)
    data = flat[:-2] + flat[flat.rindex(b"\xff\xda") : -2] * 40 + flat[-2:]
    with raises("data.image_too_large", "--max-pixels"):
        open_image(data, "it", Decoding())
    assert open_image(data, "it", Decoding(pixel_limit=200_000_000)).size == Size(6_000, 6_000)


def tiff_of_scans(side: int, rows: int, scans: int) -> bytes:
    """A gray TIFF whose strips are all one progressive JPEG, the last scan of which is repeated."""
    flat, count = encoded(Image.new("L", (side, rows)), "JPEG", progressive=True), side // rows
    strip = flat[:-2] + flat[flat.rindex(b"\xff\xda") : -2] * scans + flat[-2:]
    tags = {256: side, 257: side, 258: 8, 259: 7, 262: 1, 273: 200, 277: 1, 278: rows, 279: 200 + 4 * count}
    entries = b"".join(
        struct.pack("<HHII", tag, 4, count if tag in {273, 279} else 1, value) for tag, value in tags.items()
    )
    head = (b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries).ljust(200, b"\0")
    return head + struct.pack(f"<{2 * count}I", *[200 + 8 * count] * count, *[len(strip)] * count) + strip


def arithmetic(data: bytes) -> bytes:
    """A JPEG whose header says that it is by arithmetic coding, of a few bytes for millions of coefficients."""
    return data.replace(b"\xff\xc0", b"\xff\xc9", 1).replace(b"\xff\xc2", b"\xff\xca", 1)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_by_arithmetic_coding_is_refused_at_fewer_pixels_unless_it_has_the_bytes_of_a_photo(
    progressive: bool,
) -> None:
    bomb = encoded(Image.new("RGB", (7_000, 4_000)), "JPEG", progressive=progressive, subsampling=0)
    assert open_image(bomb, "it", Decoding()).size == Size(4_000, 7_000)
    with raises("data.image_too_large", "--max-pixels"):
        open_image(arithmetic(bomb), "it", Decoding())
    photo = arithmetic(encoded(Image.new("RGB", (6_000, 4_000)), "JPEG", progressive=progressive))
    photo = photo.ljust(6_000_000, b"\0")
    assert open_image(photo, "it", Decoding()).size == Size(4_000, 6_000)


def test_a_jpeg_of_four_channels_takes_more_memory_and_time() -> None:
    gray, four = (encoded(Image.new(mode, (8_000, 6_000)), "JPEG") for mode in ("L", "CMYK"))
    assert open_image(gray, "it", Decoding()).size == Size(6_000, 8_000)
    with raises("data.image_too_large", "--max-pixels"):
        open_image(four, "it", Decoding())
    assert open_image(four.ljust(10_000_000, b"\0"), "it", Decoding()).size == Size(6_000, 8_000)


def test_scans_of_the_jpegs_in_a_tiff_are_counted() -> None:
    assert open_image(tiff_of_scans(4_096, 256, 0), "it", Decoding()).size == Size(4_096, 4_096)
    with raises("data.image_too_large", "--max-pixels"):
        open_image(tiff_of_scans(4_096, 256, 60), "it", Decoding())


def tiff_of_a_tile(side: int, tile: int, channels: int) -> bytes:
    """A TIFF whose only tile may be much larger than the image."""
    pixels = zlib.compress(bytes(64))
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1 if channels == 1 else 2, 277: channels}
    tags |= {322: tile, 323: tile, 324: 0, 325: len(pixels)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, 8 + 14 + 120 if tag == 324 else tags[tag]) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + pixels


@pytest.mark.parametrize(("tile", "channels"), [(17_000, 1), (10_000, 3)])
def test_the_tile_of_a_tiff_may_be_larger_than_the_image_but_not_by_much(tile: int, channels: int) -> None:
    assert open_image(tiff_of_a_tile(64, 512, channels), "it", Decoding()).size == Size(64, 64)
    with raises("data.image_too_large", "--max-pixels"):
        open_image(tiff_of_a_tile(64, tile, channels), "it", Decoding())


def test_each_part_of_a_tiff_and_each_chunk_of_a_png_takes_time() -> None:
    def seconds(data: bytes) -> float:
        image = open_image(data, "it", Decoding()).image
        assert image
        return decode_cost(image, data, image.mode).seconds

    picture = Image.new("L", (64, 3_000))
    one, each = (encoded(picture, "TIFF", tiffinfo={278: rows}) for rows in (3_000, 1))
    assert seconds(each) - seconds(one) > 0.02
    plain, many = flat_png(16, 8, 2), flat_png(16, 8, 2, chunk(b"tEXt", b"a\0b") * 90_000)
    assert seconds(many) - seconds(plain) > 0.2


def test_an_interlaced_png_takes_longer() -> None:
    plain = flat_png(4_500, 8, 2)
    start = plain.index(b"IHDR")
    header = plain[start : start + 16] + b"\1"  # the last byte of its content
    interlaced = plain[:start] + header + struct.pack(">I", zlib.crc32(header)) + plain[start + 21 :]
    assert open_image(plain, "it", Decoding()).size == Size(4_500, 4_500)
    with raises("data.image_too_large", "--max-pixels"):
        open_image(interlaced, "it", Decoding())


def bmp_of_runs(side: int) -> bytes:
    """A BMP that stores each pixel as a run of its own, which Pillow decodes in Python."""
    body, start = (b"\1\5" * side + b"\0\0") * side + b"\0\1", 54 + 1024
    info = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + info + bytes(1024) + body


def turned(mode: str, side: int) -> bytes:
    exif = Image.Exif()
    exif[0x112] = 6
    return encoded(Image.new(mode, (side, side)), "JPEG", exif=exif.tobytes())


def odd_factors(side: int) -> bytes:
    """A JPEG whose color is reduced in a way that libjpeg-turbo leaves to Pillow."""
    data = bytearray(encoded(Image.new("RGB", (side, side)), "JPEG", subsampling=0))
    start = data.index(b"\xff\xc0") + 11
    data[start], data[start + 3], data[start + 6] = 0x11, 0x12, 0x21
    return bytes(data)


def deep_cmyk(side: int) -> bytes:
    tags = {256: side, 257: side, 258: 16, 259: 8, 262: 5, 273: 200, 277: 4, 278: 16, 279: 9}
    entries = b"".join(
        struct.pack("<HHII", tag, 3, 4 if tag == 258 else 1, 180 if tag == 258 else value)
        for tag, value in tags.items()
    )
    head = (b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)).ljust(180, b"\0")
    return head + struct.pack("<4H", 16, 16, 16, 16) + bytes(99)


BOMBS: dict[str, Callable[[], bytes]] = {
    "a CMYK JPEG that is turned": lambda: turned("CMYK", 6_000),
    "a JPEG of odd factors": lambda: odd_factors(6_500),
    "a color that means transparent": lambda: flat_png(4_300, 8, 2, chunk(b"tRNS", bytes(6))),
    "WebP with alpha": lambda: encoded(Image.new("RGBA", (4_600, 4_600)), "WEBP", lossless=True, method=0),
    "CMYK of 16 bits": lambda: deep_cmyk(2_800),
    "color of 16 bits": lambda: flat_png(5_000, 16, 2),
    "alpha": lambda: flat_png(5_000, 8, 6),
    "a canvas of WebP": lambda: encoded(Image.new("RGB", (4_800, 4_800)), "WEBP", lossless=True, method=0),
    "gray": lambda: flat_png(6_300, 8, 0),
    "a BMP of runs": lambda: bmp_of_runs(1_900),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_that_takes_much_memory_is_refused_and_the_limit_can_be_raised(kind: str) -> None:
    data = BOMBS[kind]()
    with raises("data.image_too_large", "--max-pixels"):
        open_image(data, "it", Decoding())
    open_image(data, "it", Decoding(pixel_limit=200_000_000))


def test_large_images_of_few_bytes_that_scanners_and_phones_write_are_not_refused() -> None:
    page = encoded(Image.new("1", (4_960, 7_016)), "TIFF", compression="group4")  # A4 at 600 dots per inch
    assert open_image(page, "it", Decoding()).size == Size(7_016, 4_960)
    for format, length in (("WEBP", 1_300_000), ("AVIF", 1_000_000)):  # as long as real ones of 24 megapixels
        photo = encoded(Image.new("RGB", (600, 400)), format).ljust(length, b"\0")
        image = open_image(photo, "it", Decoding())
        cost = decode_cost(resized(image.image, 6_000, 4_000), photo, "RGB")
        limit = cost_limit(photo, 1.0)
        assert cost.memory <= limit.memory
        assert cost.seconds <= limit.seconds


def test_alpha_and_more_bits_of_an_avif_take_more() -> None:
    plain, alpha = (encoded(Image.new(mode, (64, 64)), "AVIF") for mode in ("RGB", "RGBA"))
    costs = [
        decode_cost(resized(open_image(data, "it", Decoding()).image, 4_800, 4_800), data, "RGB")
        for data in (plain, alpha)
    ]
    limit = cost_limit(plain, 1.0)
    assert costs[0].memory <= limit.memory < costs[1].memory


def resized(image: ImageFile | None, width: int, height: int) -> ImageFile:
    """An image as if its header declared another size."""
    assert image
    image._size = width, height
    return image


def test_a_webp_is_measured_before_pillow_allocates_its_canvas() -> None:
    data = encoded(Image.new("RGB", (16, 16)), "WEBP", save_all=True, append_images=[Image.new("RGB", (16, 16), "red")])
    at = data.index(b"VP8X") + 12
    with raises("data.image_too_large", "16383x16383"):
        open_image(data[:at] + b"\xfe\x3f\0" * 2 + data[at + 6 :], "it", Decoding())


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_a_large_image_is_converted_in_bands_to_the_same_pixels(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(noise(40, 50, 4).astype(np.uint8)).convert(mode), "PNG")
    whole = decode(data, "it", Decoding(), FULL_SIZE)
    for module in ("decode", "pixels"):
        monkeypatch.setattr(f"vitral.data.decoding.{module}.BAND_PIXELS", 170)
    np.testing.assert_array_equal(decode(data, "it", Decoding(), FULL_SIZE), whole)


def test_what_cameras_and_scanners_write_is_not_complex() -> None:
    thumbnail = b"\xff\xe1" + struct.pack(">H", len(JPEG) + 8) + b"Exif\0\0" + JPEG
    assert open_image(JPEG[:2] + thumbnail + b"\xff" * 99 + JPEG[2:], "it", Decoding()).size == Size(64, 64)
    assert decode(many_scans(50), "it", Decoding(lenient=True), FULL_SIZE).shape == (64, 64, 3)
    pages = [Image.fromarray(noise(64, 64, 3).astype(np.uint8)) for _ in range(9)]
    assert decode(encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:]), "it", Decoding(), FULL_SIZE).size
    deep = encoded(Image.fromarray(noise(600, 600).astype(np.uint16) * 257), "PNG")
    assert decode(deep, "it", Decoding(), FULL_SIZE).shape == (600, 600, 3)


@pytest.mark.slow
def test_giants_open() -> None:
    giant = encoded(Image.linear_gradient("L").resize((12_000, 9_000)).convert("RGB"), "JPEG")
    assert open_image(giant, "it", Decoding(pixel_limit=108_000_000)).pixels(Size(64, 64)).shape == (1125, 1500, 3)
    with raises("data.image_too_large", "--max-pixels 108000000"):
        open_image(giant, "it", Decoding())
    photo = Image.fromarray(noise(3_000, 4_000, 3).astype(np.uint8))
    assert decode(encoded(photo, "JPEG", progressive=True), "it", Decoding(), FULL_SIZE).shape == (3_000, 4_000, 3)
