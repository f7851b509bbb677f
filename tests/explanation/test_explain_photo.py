"""What the model sees of a picture is found on the picture, to a pixel."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pictures import encoded, exif, npy
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.explanation.explain import MAX_SIDE, read_photo
from vitral.explanation.explanation import Photo

SHAPES = [(120, 240), (240, 120), (200, 200), (97, 251), (251, 97)]
VIEWS = [Resize(), CenterCrop(), CenterCrop(fraction=0.5), CenterCrop(fraction=1.0)]


def coordinates(height: int, width: int) -> Pixels:
    """A picture that says of each pixel where it is: red is the row, green the column."""
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([down, across, 0 * down], axis=-1).astype(np.uint8)


def saved(folder: Path, picture: bytes, name: str = "photo.png") -> Path:
    (folder / name).write_bytes(picture)
    return folder / name


def pixels_of(photo: Photo, height: int, width: int) -> tuple[float, float, float, float]:
    return photo.top * height, photo.left * width, photo.height * height, photo.width * width


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("image", [Size(64, 64), Size(48, 96), Size(96, 48)], ids=str)
def test_the_part_that_was_seen_is_where_its_pixels_came_from(
    height: int, width: int, view: Resize | CenterCrop, image: Size, tmp_path: Path
) -> None:
    path = saved(tmp_path, encoded(coordinates(height, width), "PNG"))
    photo = read_photo(path, Preprocessing(image_size=image, crop=view))[0]
    top, left, rows, columns = pixels_of(photo, height, width)
    inner = slice(8, -8)  # a resized pixel at the border mixes fewer neighbors, so its color is not its place
    found_rows = photo.crop[inner, image.width // 2, 0].astype(float)
    found_columns = photo.crop[image.height // 2, inner, 1].astype(float)
    expected_rows = top + (np.arange(image.height)[inner] + 0.5) * rows / image.height - 0.5
    expected_columns = left + (np.arange(image.width)[inner] + 0.5) * columns / image.width - 0.5
    assert np.abs(found_rows - expected_rows).max() < 1
    assert np.abs(found_columns - expected_columns).max() < 1
    assert top >= -1e-9
    assert left >= -1e-9
    assert top + rows <= height + 1e-9
    assert left + columns <= width + 1e-9


@pytest.mark.parametrize(("height", "width"), [(176, 300), (300, 176)])
def test_a_marked_rectangle_fills_what_the_model_sees(height: int, width: int, tmp_path: Path) -> None:
    """The middle square of half the shorter side, 88 x 88, is white, and all around it black."""
    picture = np.zeros((height, width, 3), np.uint8)
    top, left = (height - 88) // 2, (width - 88) // 2
    picture[top : top + 88, left : left + 88] = 255
    path = saved(tmp_path, encoded(picture, "PNG"))
    photo = read_photo(path, Preprocessing(image_size=Size(44, 44), crop=CenterCrop(fraction=0.5)))[0]
    assert pixels_of(photo, height, width) == pytest.approx((top, left, 88, 88))
    assert photo.crop[1:-1, 1:-1].min() == 255
    wider = read_photo(path, Preprocessing(image_size=Size(46, 46), crop=CenterCrop(fraction=46 / 88)))[0]
    edges = (wider.crop[0], wider.crop[-1], wider.crop[:, 0], wider.crop[:, -1])
    assert max(edge.max() for edge in edges) < 255  # one pixel more on each side is black


@pytest.mark.parametrize("channels", [1, 3])
def test_the_model_is_given_the_numbers_that_it_predicts_from(channels: int, tmp_path: Path) -> None:
    data = encoded(np.random.default_rng(0).integers(0, 256, (300, 401, 3)).astype(np.uint8), "JPEG")
    needs = Preprocessing(image_size=Size(32, 48), decoding=Decoding(channels=channels), crop=CenterCrop())
    found = read_photo(saved(tmp_path, data, "photo.jpg"), needs)
    assert torch.equal(found[1], needs.tensor(data, "photo.jpg"))
    assert np.array_equal(found[0].crop, needs.pixels(data, "photo.jpg"))
    assert found[0].name == "photo.jpg"


def test_the_picture_is_in_its_own_colors_though_the_model_sees_gray(tmp_path: Path) -> None:
    picture = np.zeros((20, 30, 3), np.uint8)
    picture[..., 0] = 200
    found = read_photo(saved(tmp_path, encoded(picture, "PNG")), Preprocessing(decoding=Decoding(channels=1)))[0]
    assert np.array_equal(found.image, picture)
    assert found.crop.shape == (224, 224, 1)


def test_gray_and_cmyk_become_color(tmp_path: Path) -> None:
    for name, mode in (("gray.png", "L"), ("press.jpg", "CMYK")):
        Image.new(mode, (30, 20)).save(tmp_path / name)
        found = read_photo(tmp_path / name, Preprocessing())[0]
        assert (found.image.shape, found.crop.shape) == ((20, 30, 3), (224, 224, 3))


def test_a_picture_is_upright_as_its_exif_says(tmp_path: Path) -> None:
    stored = coordinates(120, 240)
    path = saved(tmp_path, encoded(stored, "PNG", exif=exif(6)))
    photo = read_photo(path, Preprocessing(image_size=Size(60, 60), crop=CenterCrop(fraction=1.0)))[0]
    assert np.array_equal(photo.image, np.rot90(stored, -1))
    assert pixels_of(photo, 240, 120) == pytest.approx((60, 0, 120, 120))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_large_picture_is_made_smaller_to_look_at(kind: str, tmp_path: Path) -> None:
    """The part that was seen is told in shares, so it does not move."""
    path = saved(tmp_path, encoded(np.zeros((1100, 3000, 3), np.uint8), kind))
    photo = read_photo(path, Preprocessing(crop=CenterCrop(fraction=1.0)))[0]
    assert photo.image.shape == (round(1100 * MAX_SIDE / 3000), MAX_SIDE, 3)
    assert pixels_of(photo, 1100, 3000) == pytest.approx((0, 950, 1100, 1100), abs=3)  # of which one is 5 wide


def test_an_array_of_many_channels_is_looked_at_as_gray(tmp_path: Path) -> None:
    path = saved(tmp_path, npy(np.full((16, 16, 5), 40, np.uint8)), "cube.npy")
    photo = read_photo(path, Preprocessing(image_size=Size(8, 8), decoding=Decoding(channels=5)))[0]
    assert photo.image.shape == (16, 16, 3)
    assert photo.crop.shape == (8, 8, 5)


def test_what_is_no_image_is_refused_by_name(tmp_path: Path) -> None:
    near = saved(tmp_path, b"no image at all", "cat.jpg")
    with raises("data.unknown_format", near):
        read_photo(near, Preprocessing())
    with raises("data.not_found", tmp_path / "cats.jpg", near):
        read_photo(tmp_path / "cats.jpg", Preprocessing())
    with raises("data.not_a_file", tmp_path):
        read_photo(tmp_path, Preprocessing())
