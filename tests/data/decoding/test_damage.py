"""Damage that decoders pass over is an error, and a lenient decoder names it."""

import zlib
from collections.abc import Callable
from io import BytesIO
from random import Random

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from tests.data.pictures import encoded, noise
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.decoding import tiff
from vitral.data.decoding.damage import is_harmless, libtiff_messages, png_damage
from vitral.data.decoding.decode import FULL_SIZE, decode, open_image
from vitral.data.decoding.header import Decoding

PHOTO = np.asarray(Image.fromarray(noise(12, 15, 3).astype(np.uint8)).resize((121, 93), Image.Resampling.BICUBIC))
PNG = encoded(PHOTO, "PNG")


def chunk(kind: bytes, content: bytes, wrong: int = 0) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + (zlib.crc32(kind + content) ^ wrong).to_bytes(4, "big")


def lenient(data: bytes) -> tuple[np.ndarray, list[str]]:
    found: list[str] = []
    image = open_image(data, "it", Decoding(lenient=True), lambda _, damage: found.append(damage))
    return image.pixels(FULL_SIZE), found


def test_a_wrong_checksum_of_a_png_is_damage() -> None:
    at = PNG.index(b"IDAT") + 4 + int.from_bytes(PNG[PNG.index(b"IDAT") - 4 : PNG.index(b"IDAT")], "big")
    wrong = PNG[:at] + bytes([PNG[at] ^ 1]) + PNG[at + 1 :]
    assert png_damage(PNG) == ""
    with raises("data.damaged_image", "it", "IDAT"):
        decode(wrong, "it", Decoding(), FULL_SIZE)
    pixels, damage = lenient(wrong)
    np.testing.assert_array_equal(pixels, PHOTO)
    assert len(damage) == 1


def test_a_note_after_the_pixels_is_checked_as_well() -> None:
    end = PNG.index(b"IEND") - 4
    good, bad = (PNG[:end] + chunk(b"tEXt", b"a\0b", wrong) + PNG[end:] for wrong in (0, 1))
    np.testing.assert_array_equal(decode(good, "it", Decoding(), FULL_SIZE), PHOTO)
    with raises("data.damaged_image", "tEXt"):
        decode(bad, "it", Decoding(), FULL_SIZE)


def test_bytes_after_a_png_are_not_looked_at() -> None:
    np.testing.assert_array_equal(decode(PNG + b"trailing", "it", Decoding(), FULL_SIZE), PHOTO)


def test_a_progressive_jpeg_that_ends_between_two_scans_is_damage() -> None:
    whole = encoded(PHOTO, "JPEG", progressive=True)
    scans = [at for at in range(len(whole)) if whole[at : at + 2] == b"\xff\xda"]
    ends = [whole.rindex(b"\xff\xc4", 0, scan) for scan in scans[1:] if b"\xff\xc4" in whole[:scan]]
    assert lenient(whole)[1] == []
    assert lenient(whole + whole[:100])[1] == []  # what follows the end is another image
    for end in ends:
        cut = whole[:end] + b"\xff\xd9"
        simplejpeg.decode_jpeg(cut)  # without a warning
        with raises("data.damaged_image", "it"):
            decode(cut, "it", Decoding(), FULL_SIZE)
        assert len(lenient(cut)[1]) == 1
    assert len(ends) == 9


def test_a_fax_with_bad_codes_is_damage() -> None:
    page = encoded(Image.fromarray(PHOTO).convert("1"), "TIFF", compression="group4")
    assert decode(page, "it", Decoding(), FULL_SIZE).shape == (93, 121, 3)
    rng, codes = Random(0), []
    for _ in range(20):
        broken = bytearray(page)
        broken[rng.randrange(8, len(page) // 2)] ^= 1 << rng.randrange(8)
        try:
            decode(bytes(broken), "it", Decoding(), FULL_SIZE)
        except DataError as error:
            codes.append(error.code)
            assert lenient(bytes(broken))[1]
    assert codes.count("data.damaged_image") >= 18


PAGES = {  # and how many of 20 faults are noticed at least: bits of a photo may be those of another
    "group3": (Image.fromarray(PHOTO).convert("1"), 20),
    "tiff_ccitt": (Image.fromarray(PHOTO).convert("1"), 20),
    "jpeg": (Image.fromarray(PHOTO), 14),
    "tiff_adobe_deflate": (Image.fromarray(PHOTO), 20),
}


@pytest.mark.parametrize("compression", PAGES)
def test_warnings_of_libtiff_and_wrong_checksums_are_damage(compression: str) -> None:
    picture, least = PAGES[compression]
    page = encoded(picture, "TIFF", compression=compression)
    tags, rng, noticed = TiffImageFile(BytesIO(page)).tag_v2, Random(0), 0
    start, end = tags[273][0], tags[273][0] + tags[279][0]
    assert lenient(page)[1] == []
    for _ in range(20):
        at = rng.randrange(start, end - 40)
        broken = page[:at] + bytes(20) + page[at + 20 :]
        try:
            decode(broken, "it", Decoding(), FULL_SIZE)
        except DataError as error:
            noticed += error.code == "data.damaged_image"
    assert noticed >= least


def test_a_damaged_fax_is_used_by_a_lenient_decoder_and_named_once() -> None:
    page = bytearray(encoded(Image.fromarray(PHOTO).convert("1"), "TIFF", compression="group3"))
    page[200:220] = bytes(20)
    pixels, damage = lenient(bytes(page))
    assert pixels.shape == (93, 121, 3)
    assert len(damage) == 1
    assert "Fax3Decode1D" in damage[0]


def test_fax_without_marks_at_the_ends_of_lines_is_not_damaged() -> None:
    assert not tiff._is_damage("Fax3Decode1D: Try to decode (read) fax Group 3 data without EOL at line 1")
    assert tiff._is_damage("Fax3Decode2D: Premature EOL at line 2 of strip 0 (got 1, expected 9)")
    assert not tiff._is_damage("JPEGLib: Corrupt JPEG data: 3 extraneous bytes before marker 0xd9")
    assert not tiff._is_damage("TIFFReadDirectory: Unknown field with tag 65000")


def test_libtiff_says_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    page = bytearray(encoded(Image.fromarray(PHOTO), "TIFF", compression="tiff_lzw"))
    page[60:90] = bytes(30)
    with raises("data.corrupt_image"):
        decode(bytes(page), "it", Decoding(), FULL_SIZE)
    assert capfd.readouterr().err == ""


def test_messages_of_libtiff_are_those_of_the_block() -> None:
    with libtiff_messages() as first:
        pass
    page = bytearray(encoded(Image.fromarray(PHOTO).convert("1"), "TIFF", compression="group4"))
    page[20:60] = bytes(40)
    with pytest.raises(DataError):
        decode(bytes(page), "it", Decoding(), FULL_SIZE)
    assert first == []


ISPE = b"ispe\0\0\0\0"


def resized(data: bytes, change: Callable[[int], int]) -> bytes:
    """An AVIF that declares another width."""
    at = data.index(ISPE) + len(ISPE)
    return data[:at] + change(int.from_bytes(data[at : at + 4], "big")).to_bytes(4, "big") + data[at + 4 :]


@pytest.mark.parametrize("change", [lambda width: width // 2, lambda width: 2 * width], ids=["smaller", "larger"])
def test_an_avif_that_lies_about_its_size_is_damage(change: Callable[[int], int]) -> None:
    data = encoded(PHOTO, "AVIF")
    with raises("data.damaged_image", "93x121"):
        decode(resized(data, change), "it", Decoding(), FULL_SIZE)
    assert lenient(resized(data, change))[1]


MESSAGES = {
    "Corrupt JPEG data: premature end of data segment": False,
    "Corrupt JPEG data: bad Huffman code": False,
    "Corrupt JPEG data: found marker 0xd9 instead of RST4": False,
    "Inconsistent progression sequence for component 0 coefficient 1": False,
    "Corrupt JPEG data: bad ICC marker": True,
    "Warning: unknown JFIF revision number 2.01": True,
    "Unknown Adobe color transform code 9": True,
    "Invalid SOS parameters for sequential JPEG": True,
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_warning_of_libjpeg_is_judged_by_the_pixels(message: str) -> None:
    assert is_harmless(message, b"") == MESSAGES[message]
