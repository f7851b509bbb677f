"""Pictures in themselves, and the colors of heat."""

from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vitral.data.decoding.pixels import Pixels
from vitral.explanation.page.pictures import (
    GAP,
    GAP_GRAY,
    MOST_CELLS,
    MOST_TILES,
    encode_image,
    encode_images,
    encode_png,
    filter_pictures,
    heat_colors,
    mean_colors,
    page_icon,
    position_mosaic,
)
from vitral.html.heatmap import NEGATIVE_COLORS, POSITIVE_COLORS
from vitral.models.base import Grid


def read(found: str) -> tuple[str, Pixels]:
    """The kind of an address, and the pixels in it."""
    head, data = found.split(",")
    picture = Image.open(BytesIO(b64decode(data)))
    return head.removeprefix("data:image/").removesuffix(";base64"), np.asarray(picture.convert("RGB"))


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_a_small_picture_is_kept_to_the_pixel_and_a_large_one_is_a_jpeg_of_the_size_asked_for() -> None:
    small = noise(160, 90, 3)
    kind, pixels = read(encode_image(small))
    assert kind == "png"
    np.testing.assert_array_equal(pixels, small)
    kind, pixels = read(encode_image(noise(300, 150, 3), side=200))
    assert kind == "jpeg"
    assert pixels.shape == (200, 100, 3)


@pytest.mark.parametrize("channels", [1, 3, 4, 9])
def test_any_number_of_channels_can_be_shown(channels: int) -> None:
    assert read(encode_image(noise(8, 8, channels)))[1].shape == (8, 8, 3)


def test_pictures_shrink_until_all_fit_and_a_drawing_stays_sharp() -> None:
    photos = [noise(400, 400, 3) for _ in range(3)]
    large, small = encode_images(photos, 10_000_000), encode_images(photos, 100_000)
    assert sum(map(len, small)) <= 100_000 < sum(map(len, large))
    assert read(large[0])[1].shape == (400, 400, 3)
    flat = np.zeros((400, 400, 3), np.uint8)
    flat[:200] = 255
    kind, pixels = read(encode_images([flat], 100_000)[0])
    assert kind == "png"
    np.testing.assert_array_equal(pixels, flat)
    assert encode_images([], 10) == ()


def test_heat_runs_from_ice_through_night_to_candle_light() -> None:
    colors = heat_colors(np.array([-1, 0, 1, -7, 7, np.nan], np.float32))
    np.testing.assert_array_equal(
        colors,
        [
            NEGATIVE_COLORS[-1],
            POSITIVE_COLORS[0],
            POSITIVE_COLORS[-1],
            NEGATIVE_COLORS[-1],
            POSITIVE_COLORS[-1],
            POSITIVE_COLORS[0],
        ],
    )
    assert NEGATIVE_COLORS[0] == POSITIVE_COLORS[0]


def test_heat_grows_brighter_all_the_way() -> None:
    places = np.linspace(0, 1, 101, dtype=np.float32)
    for values in (places, -places):
        luminance = heat_colors(values) @ np.array([0.2126, 0.7152, 0.0722])
        assert (np.diff(luminance) >= -0.8).all()  # by a step of rounding at most
        assert luminance[-1] > 200


def test_a_filter_keeps_its_signs_and_fills_its_range() -> None:
    filters = np.zeros((2, 2, 2, 3), np.float32)
    filters[0, 0, 0] = [0.5, -0.25, 0]
    filters[1, 1, 1, 2] = -8
    first, second = filter_pictures(filters)
    np.testing.assert_array_equal(first[0, 0], [255, 64, 128])
    np.testing.assert_array_equal(second[1, 1], [128, 128, 0])
    assert filter_pictures(np.zeros((0, 0, 0, 0), np.float32)) == []
    assert filter_pictures(np.ones((1, 4, 4, 1), np.float32))[0].shape == (4, 4, 3)
    assert (filter_pictures(np.zeros((1, 4, 4, 3), np.float32))[0] == 128).all()


def test_each_tile_of_the_mosaic_stands_where_its_position_is() -> None:
    rows, columns = 3, 5
    positions = np.eye(rows * columns, dtype=np.float32).reshape(rows, columns, rows, columns)
    found = position_mosaic(positions)
    assert found.tiles == found.cells == Grid(rows, columns)
    times = (found.picture.shape[0] + GAP) // rows // rows
    assert times > 1
    for row in range(rows):
        for column in range(columns):
            top, left = row * (rows * times + GAP), column * (columns * times + GAP)
            tile = found.picture[top : top + rows * times, left : left + columns * times]
            bright = np.argwhere((tile == POSITIVE_COLORS[-1]).all(axis=-1)) // times
            assert {tuple(place) for place in bright.tolist()} == {(row, column)}
    assert (found.picture[rows * times] == GAP_GRAY).all()


def test_a_mosaic_of_many_positions_shows_some_of_them_spread_from_corner_to_corner() -> None:
    side = 37
    rows, columns = np.indices((side, side))
    value = (rows * side + columns) / side**2  # each tile has one color, that of its place
    found = position_mosaic(np.broadcast_to(value[..., None, None], (side, side, side, side)).astype(np.float32))
    assert found.tiles == Grid(MOST_TILES, MOST_TILES)
    assert found.cells == Grid(MOST_CELLS, MOST_CELLS)
    np.testing.assert_array_equal(found.picture[0, 0], POSITIVE_COLORS[0])
    np.testing.assert_array_equal(found.picture[-1, -1], heat_colors(value[-1:, -1].astype(np.float32))[0])
    assert max(found.picture.shape) < 1000


def test_panes_have_the_mean_color_of_their_part() -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[:2, :3] = [255, 0, 16]
    picture[2:, 3:] = [0, 9, 0]
    assert mean_colors(picture, Grid(2, 2)) == ["#ff0010", "#000000", "#000000", "#000900"]


def test_the_icon_is_the_picture_in_sixteen_panes() -> None:
    _, pixels = read(page_icon(noise(64, 48, 3)))
    assert pixels.shape == (32, 32, 3)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) <= 16
    np.testing.assert_array_equal(read(encode_png(pixels))[1], pixels)
