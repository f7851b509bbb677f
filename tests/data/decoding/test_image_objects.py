"""PIL images and arrays give the pixels that their files would give."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.data.pictures import COLUMNS, ROWS, color, encoded, noise, smooth
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.image_objects import image_bytes
from vitral.data.transforms.preprocessing import Preprocessing

SMALL = Preprocessing(image_size=Size(16, 16))
GRAY = noise(ROWS, COLUMNS).astype(np.uint8)
RGBA = noise(ROWS, COLUMNS, 4).astype(np.uint8)
GRAY_ALPHA = noise(ROWS, COLUMNS, 2).astype(np.uint8)


def pixels(image: object, channels: int = 3) -> NDArray[np.uint8]:
    return decode(image_bytes(image, "it", channels), "it", Decoding(channels=channels), FULL_SIZE)


def composited(samples: NDArray[np.uint8]) -> NDArray[np.float64]:
    """On white, in float64."""
    alpha = samples[..., -1:] / 255
    return np.rint(samples[..., :-1] * alpha + 255 * (1 - alpha))


def as_rgb(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"])
def test_an_opaque_image_has_the_colors_that_pillow_shows(mode: str) -> None:
    image = Image.fromarray(color()).convert("RGB" if mode == "RGBX" else mode)
    if mode == "RGBX":
        image = Image.fromarray(RGBA, "RGBX")
    assert (pixels(image) == as_rgb(image)).all()


def test_alpha_is_composited_in_every_mode_that_has_it() -> None:
    gray = composited(GRAY_ALPHA)
    assert np.abs(pixels(Image.fromarray(RGBA, "RGBA")) - composited(RGBA)).max() == 0
    assert np.abs(pixels(Image.fromarray(GRAY_ALPHA, "LA")) - gray).max() == 0
    assert np.abs(pixels(Image.fromarray(RGBA, "RGBA").convert("RGBa")) - composited(RGBA)).max() <= 2
    assert np.abs(pixels(Image.fromarray(GRAY_ALPHA, "LA").convert("La")) - gray).max() <= 2


def test_transparent_colors_of_palettes_and_keys_become_the_background() -> None:
    palette = Image.fromarray(color()).convert("P")
    palette.info["transparency"] = int(np.asarray(palette)[0, 0])
    with_alpha = palette.convert("PA")
    keyed = Image.fromarray(color())
    keyed.info["transparency"] = tuple(color()[0, 0].tolist())
    for image in (palette, keyed):
        assert (pixels(image)[0, 0] == 255).all()
    rest = np.asarray(palette) != np.asarray(palette)[0, 0]
    assert (pixels(palette)[rest] == as_rgb(palette)[rest]).all()
    assert (pixels(with_alpha) == composited(np.asarray(with_alpha.convert("RGBA")))).all()


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I;16L"])
def test_gray_of_16_bits_is_rounded(mode: str) -> None:
    words = noise(ROWS, COLUMNS, highest=65_535).astype(">u2" if mode == "I;16B" else "<u2")
    image = Image.frombytes(mode, (COLUMNS, ROWS), words.tobytes())
    assert (pixels(image, channels=1)[..., 0] == np.rint(words / 257)).all()


def test_floats_are_shares_of_white() -> None:
    floats = (GRAY / 255).astype(np.float32)
    assert (pixels(Image.fromarray(floats), channels=1)[..., 0] == GRAY).all()
    assert (pixels(floats, channels=1)[..., 0] == GRAY).all()
    assert (pixels(color() / 255) == color()).all()
    assert (pixels(RGBA / 255) == composited(RGBA)).all()
    with raises("data.pixel_out_of_range", "it"):
        pixels(color().astype(np.float32))


@pytest.mark.parametrize("mode", ["I", "LAB"])
def test_a_mode_without_one_meaning_is_refused(mode: str) -> None:
    with raises("data.unsupported_image", "it", mode):
        pixels(Image.new(mode, (COLUMNS, ROWS)))


def test_arrays_are_gray_color_or_color_with_alpha() -> None:
    assert (pixels(GRAY) == GRAY[..., None]).all()
    assert (pixels(GRAY[..., None]) == GRAY[..., None]).all()
    assert (pixels(color()) == color()).all()
    assert (pixels(color()[::-1, ::2]) == color()[::-1, ::2]).all(), "an array need not be contiguous"
    assert (pixels(RGBA) == composited(RGBA)).all()
    assert (pixels(GRAY_ALPHA) == composited(GRAY_ALPHA)).all()
    assert (pixels(RGBA, channels=4) == RGBA).all(), "a model of four channels takes them as they are"


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (np.moveaxis(color(), -1, 0), "transpose(1, 2, 0)"),
        (GRAY.astype(np.int64), "int64"),
        (np.array([["a"]]), "<U1"),
        (np.zeros((2, 3, 4, 5), np.uint8), "(2, 3, 4, 5)"),
    ],
)
def test_an_array_that_is_no_image_is_refused(array: NDArray[Any], value: str) -> None:
    with raises("data.unsupported_image", "it", value):
        pixels(array)


@pytest.mark.parametrize("image", [None, 3, [color()], object()])
def test_an_object_that_is_no_image_is_refused(image: object) -> None:
    with raises("data.unsupported_image", "it", type(image).__name__):
        image_bytes(image, "it")


def rotated(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(smooth(61, 47), kind, exif=exif.tobytes())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_opened_image_gives_the_tensor_of_its_path(kind: str, orientation: int, tmp_path: Path) -> None:
    path = tmp_path / f"it.{kind.lower()}"
    path.write_bytes(rotated(kind, orientation))
    expected = SMALL.pixels(image_bytes(path), "it")
    opened = Image.open(path)
    assert (SMALL.pixels(image_bytes(opened), "it") == expected).all(), "not loaded: the file itself"
    assert (SMALL.pixels(image_bytes(str(path)), "it") == expected).all()
    exact = Preprocessing(image_size=Size(61, 47))  # a JPEG is not reduced
    opened.load()
    found = exact.pixels(image_bytes(opened), "it").astype(int)
    assert np.abs(found - exact.pixels(path.read_bytes(), "it")).max() <= 1, "loaded: its pixels, upright"
    turned = opened.convert("RGBA")
    assert np.abs(exact.pixels(image_bytes(turned), "it") - found).max() <= 1, "derived images keep their EXIF"


def test_reading_an_opened_image_leaves_it_usable() -> None:
    data = encoded(smooth(), "PNG")
    opened = Image.open(BytesIO(data))
    assert image_bytes(opened) == data
    assert (np.asarray(opened) == smooth()).all()


def test_a_changed_image_is_not_its_file_any_more() -> None:
    data = encoded(smooth(64, 64), "JPEG")
    painted = Image.open(BytesIO(data))
    painted.paste((9, 9, 9), (0, 0, 64, 64))
    assert (pixels(painted) == 9).all()
    drafted = Image.open(BytesIO(data))
    drafted.draft("L", (32, 32))
    assert pixels(drafted, channels=1).shape == (32, 32, 1)
    frames = [Image.new("L", (ROWS, ROWS), level) for level in (10, 200)]
    second = Image.open(BytesIO(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])))
    second.seek(1)
    assert (pixels(second) == 200).all()


def test_a_damaged_or_closed_image_names_itself() -> None:
    truncated = Image.open(BytesIO(encoded(smooth(64, 64), "JPEG")[:-200]))
    with raises("data.truncated_image", "it"):
        pixels(truncated)
    with Image.open(BytesIO(encoded(smooth(), "PNG"))) as closed:
        pass
    closed.close()
    with raises("data.corrupt_image", "it"):
        pixels(closed)


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with raises("data.not_found", tmp_path / "cat.jpg"):
        image_bytes(tmp_path / "cat.jpg")
    with raises("data.unreadable", tmp_path):
        image_bytes(tmp_path)


def test_bytes_are_the_content_of_a_file() -> None:
    data = encoded(smooth(), "PNG")
    assert image_bytes(data) == image_bytes(bytearray(data)) == image_bytes(memoryview(data)) == data
