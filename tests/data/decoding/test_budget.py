"""Hostile images are refused before any work, and large ones of honest size are not."""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, noise
from tests.errors import raises
from vitral.core.config import Size
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


COMPLEX: dict[str, Callable[[], bytes]] = {
    "a JPEG of 0xFF": lambda: b"\xff\xd8" + b"\xff" * 200_000,
    "a JPEG of zeros": lambda: b"\xff\xd8\xff" + bytes(200_000),
    "comments": lambda: JPEG[:2] + b"\xff\xfe\0\2" * 3_000 + JPEG[2:],
    "EXIF in many segments": lambda: JPEG[:2] + b"\xff\xe1\0\x0aExif\0\0.." * 20 + JPEG[2:],
    "scans": lambda: many_scans(1_001),
    "chunks": lambda: flat_png(16, 8, 2, chunk(b"tEXt", b"a\0b") * 100_001),
    "blocks of a GIF": lambda: (
        GIF[: GIF.index(b",")] + b"\x21\xfe" + b"\x01a" * 70_000 + b"\0" + GIF[GIF.index(b",") :]
    ),
    "strips": lambda: many_strips(70_000),
}


@pytest.mark.parametrize("kind", COMPLEX)
def test_a_file_that_takes_long_is_refused_before_it_is_decoded(kind: str) -> None:
    with raises("data.too_complex", "it"):
        open_image(COMPLEX[kind](), "it", Decoding())


def test_more_scans_are_allowed_with_a_higher_limit_of_pixels() -> None:
    flat = encoded(Image.new("L", (6_000, 6_000)), "JPEG", progressive=True)
    data = flat[:-2] + flat[flat.rindex(b"\xff\xda") : -2] * 40 + flat[-2:]
    with raises("data.too_complex", "scans"):
        open_image(data, "it", Decoding())
    assert open_image(data, "it", Decoding(pixel_limit=100_000_000)).size == Size(6_000, 6_000)


BOMBS: dict[str, Callable[[], bytes]] = {
    "color of 16 bits": lambda: flat_png(5_000, 16, 2),
    "alpha": lambda: flat_png(5_000, 8, 6),
    "a canvas of WebP": lambda: encoded(Image.new("RGB", (4_500, 4_500)), "WEBP", lossless=True, method=0),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_that_takes_much_memory_is_refused_and_the_limit_can_be_raised(kind: str) -> None:
    data = BOMBS[kind]()
    with raises("data.image_too_large", "--max-pixels"):
        open_image(data, "it", Decoding())
    open_image(data, "it", Decoding(pixel_limit=100_000_000))


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
