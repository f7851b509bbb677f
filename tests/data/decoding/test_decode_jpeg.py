"""The quick reader against Pillow, which must not be told apart."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, exif, noise
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.decode import decode, decode_jpeg
from vitral.data.decoding.header import Decoding, Header

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


def head(data: bytes) -> Header:
    return Header("JPEG", Size(93, 121), Image.open(BytesIO(data)).mode, 1)


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", FILES)
def test_the_pixels_are_those_of_pillow_at_every_scale(kind: str, scale: int) -> None:
    data = FILES[kind]
    quick = decode_jpeg(data, head(data), (93, 121), scale)
    assert quick is not None
    np.testing.assert_array_equal(quick, by_pillow(data, scale))


def test_a_photo_on_its_side_is_reduced_and_turned() -> None:
    data = encoded(PHOTO, "JPEG", exif=exif(6))
    upright = decode(data, "side.jpg", Decoding(), Size(60, 46))
    np.testing.assert_array_equal(upright, np.rot90(by_pillow(data, 2), -1))


def test_ink_is_left_to_pillow() -> None:
    ink = Image.fromarray(noise(16, 16, 4).astype(np.uint8), "CMYK")
    data = encoded(ink, "JPEG")
    assert decode_jpeg(data, Header("JPEG", Size(16, 16), "CMYK", 1), (16, 16), 1) is None


def test_stray_bytes_before_the_end_cost_no_pixel() -> None:
    stray = FILES["4:2:0"][:-2] + b"\x00\x11\x22" + FILES["4:2:0"][-2:]
    np.testing.assert_array_equal(decode(stray, "stray.jpg", Decoding(), Size(93, 121)), by_pillow(FILES["4:2:0"], 1))


@pytest.mark.parametrize("kind", FILES)
def test_lost_pixels_are_never_filled_in(kind: str) -> None:
    with raises("data.truncated_image", "half.jpg"):
        decode(FILES[kind][: len(FILES[kind]) // 2], "half.jpg", Decoding(), Size(8, 8))
