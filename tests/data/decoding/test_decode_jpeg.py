"""The quick reader against Pillow, which must not be told apart."""

from collections.abc import Callable
from contextlib import nullcontext
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.data.pictures import cut, encoded, exif, noise
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.decode import FULL_SIZE, decode, decode_jpeg, jpeg_scale, open_image
from vitral.data.decoding.header import Decoding, JpegScale
from vitral.data.transforms.preprocessing import Preprocessing

PHOTO = np.asarray(Image.fromarray(noise(12, 15, 3).astype(np.uint8)).resize((121, 93), Image.Resampling.BICUBIC))
FILES = {
    "4:2:0": encoded(PHOTO, "JPEG", quality=80, subsampling=2),
    "4:2:2": encoded(PHOTO, "JPEG", quality=80, subsampling=1),
    "4:4:4": encoded(PHOTO, "JPEG", quality=80, subsampling=0),
    "progressive": encoded(PHOTO, "JPEG", progressive=True),
    "gray": encoded(PHOTO[..., 0], "JPEG"),
    "kept as RGB": encoded(PHOTO, "JPEG", keep_rgb=True),
    "restarts": encoded(PHOTO, "JPEG", restart_marker_blocks=3),
}


def by_pillow(data: bytes, scale: int) -> np.ndarray:
    image = Image.open(BytesIO(data))
    image.draft("", (image.width // scale, image.height // scale))
    pixels = np.array(image)
    return pixels.reshape(*pixels.shape[:2], -1)


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", FILES)
def test_the_pixels_are_those_of_pillow_at_every_scale(kind: str, scale: int) -> None:
    data = FILES[kind]
    quick, damage = decode_jpeg(data, Image.open(BytesIO(data)).mode, (93, 121), scale)
    assert quick is not None
    assert not damage
    np.testing.assert_array_equal(quick, by_pillow(data, scale))


def test_a_photo_on_its_side_is_reduced_and_turned() -> None:
    data = encoded(PHOTO, "JPEG", exif=exif(6))
    upright = decode(data, "side.jpg", Decoding(), Size(60, 46))
    np.testing.assert_array_equal(upright, np.rot90(by_pillow(data, 2), -1))


def test_ink_is_left_to_pillow() -> None:
    ink = Image.fromarray(noise(16, 16, 4).astype(np.uint8), "CMYK")
    data = encoded(ink, "JPEG")
    rgb = np.asarray(Image.open(BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode(data, "ink.jpg", Decoding(), FULL_SIZE), rgb)
    with raises("data.damaged_image", "ink.jpg"):
        decode(cut(data), "ink.jpg", Decoding(), FULL_SIZE)


def test_stray_bytes_before_the_end_cost_no_pixel() -> None:
    stray = FILES["4:2:0"][:-2] + b"\x00\x11\x22" + FILES["4:2:0"][-2:]
    np.testing.assert_array_equal(decode(stray, "stray.jpg", Decoding(), Size(93, 121)), by_pillow(FILES["4:2:0"], 1))


@pytest.mark.parametrize("kind", FILES)
def test_lost_pixels_are_never_filled_in(kind: str) -> None:
    with raises("data.truncated_image", "half.jpg"):
        decode(FILES[kind][: len(FILES[kind]) // 2], "half.jpg", Decoding(), Size(8, 8))


@pytest.mark.parametrize("size", [Size(8, 8), FULL_SIZE], ids=["reduced", "full"])
@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "progressive"])
def test_a_photo_that_was_cut_in_half_is_damaged_whatever_its_end_marker_says(kind: str, size: Size) -> None:
    with raises("data.damaged_image", "half.jpg", "--lenient"):
        decode(cut(FILES[kind]), "half.jpg", Decoding(), size)


def test_a_lenient_decoder_takes_what_there_is_and_names_the_file(caplog: pytest.LogCaptureFixture) -> None:
    half, lenient = cut(FILES["4:2:0"]), Decoding(lenient=True)
    found: list[tuple[str, str]] = []
    pixels = open_image(half, "half.jpg", lenient, lambda *damage: found.append(damage)).pixels(FULL_SIZE)
    np.testing.assert_array_equal(pixels, by_pillow(half, 1))
    assert [name for name, _ in found] == ["half.jpg"]
    for _ in range(2):
        decode(half, "twice.jpg", lenient, FULL_SIZE)
    assert caplog.text.count("twice.jpg") == 1


def with_comment(data: bytes, stray: bytes) -> bytes:
    """The file with stray bytes between two segments of its header."""
    return data[:2] + b"\xff\xfe\0\4hi" + stray + data[2:]


HARMLESS: dict[str, Callable[[bytes], bytes]] = {
    "bytes after the end": lambda data: data + b"made by a phone" * 99,
    "a second picture": lambda data: data + data,
    "a few bytes before the end": lambda data: data[:-2] + b"\1\2\3\4" + data[-2:],
    "padding before the end": lambda data: data[:-2] + bytes(99) + data[-2:],
    "fill bytes before the end": lambda data: data[:-2] + b"\xff" * 9 + data[-2:],
    "no end marker": lambda data: data[:-2],
    "stray bytes in the header": lambda data: with_comment(data, b"stray"),
    "another version of JFIF": lambda data: data.replace(b"JFIF\0\1\1", b"JFIF\0\2\1", 1),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_cameras_write_costs_no_pixel(kind: str) -> None:
    data = HARMLESS[kind](FILES["4:2:0"])
    np.testing.assert_array_equal(decode(data, "camera.jpg", Decoding(), FULL_SIZE), by_pillow(FILES["4:2:0"], 1))


def test_bytes_that_nobody_writes_before_the_end_mean_damage() -> None:
    data = FILES["4:2:0"][:-2] + bytes(range(1, 9)) + FILES["4:2:0"][-2:]
    with raises("data.damaged_image", "8 extraneous bytes"):
        decode(data, "stray.jpg", Decoding(), FULL_SIZE)


@pytest.mark.parametrize(("choice", "scale"), [("smallest", 8), ("triple", 2), ("full", 1)])
def test_the_scale_is_a_choice_of_the_preprocessing(choice: JpegScale, scale: int) -> None:
    assert jpeg_scale(Size(800, 1200), Size(100, 100), choice) == scale
    data = encoded(np.asarray(Image.fromarray(PHOTO).resize((484, 372))), "JPEG")
    decoding = Decoding(jpeg_scale=choice)
    wanted = jpeg_scale(Size(372, 484), Size(40, 40), choice)
    np.testing.assert_array_equal(decode(data, "it", decoding, Size(40, 40)), by_pillow(data, wanted))


def test_a_decoding_that_does_not_say_keeps_the_smallest_scale() -> None:
    assert Decoding.parse({"channels": 3}).jpeg_scale == "smallest"


def test_a_reduced_photo_is_nearly_that_of_a_full_decode() -> None:
    photo = Image.fromarray(noise(94, 125, 3).astype(np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
    data, means = encoded(photo, "JPEG", quality=90), []
    full = np.asarray(Image.open(BytesIO(data)).resize((64, 64), Image.Resampling.BILINEAR), dtype=int)
    for choice in ("smallest", "triple"):
        needs = Preprocessing(image_size=Size(64, 64)).with_decoding(jpeg_scale=choice)
        means.append(np.abs(needs.pixels(data, "it") - full).mean())
    assert means[1] < 0.7 < means[0]


@pytest.mark.parametrize(("lenient", "times"), [(False, 1), (True, 2)])
def test_a_damaged_photo_is_decoded_again_only_by_a_lenient_decoder(
    lenient: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    real = simplejpeg.decode_jpeg

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", counted)
    damaged = FILES["4:2:0"][:-2] + bytes(range(1, 9)) + FILES["4:2:0"][-2:]
    image = open_image(damaged, "it", Decoding(lenient=lenient), lambda *_: None)
    with nullcontext() if lenient else raises("data.damaged_image"):
        image.pixels(FULL_SIZE)
    assert len(calls) == times
