import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.data.transforms.oracles import TENSORFLOW, answer, furthest, names
from tests.data.transforms.scene import gray_scene, scene
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms import image_ops
from vitral.data.transforms.image_ops import FILL

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def moved(name: str, pixels: Pixels, amount: float) -> Pixels:
    function = getattr(image_ops, name)
    return function(pixels, amount)


def sources(name: str, amount: float, height: int, width: int) -> NDArray[np.float64]:
    """Where each pixel comes from, (2, H, W) of column and row, by the definition of each movement."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    if name == "rotate":
        angle, middle = np.deg2rad(amount), ((width - 1) / 2, (height - 1) / 2)
        right, below = x - middle[0], y - middle[1]
        x, y = np.cos(angle) * right - np.sin(angle) * below, np.sin(angle) * right + np.cos(angle) * below
        return np.stack([x + middle[0], y + middle[1]])
    steps = {"shear_x": (y, 0), "shear_y": (0, x), "translate_x": (1, 0), "translate_y": (0, 1)}[name]
    return np.stack([x + amount * steps[0], y + amount * steps[1]])


def brute_force(name: str, pixels: Pixels, amount: float) -> tuple[Pixels, NDArray[np.bool_]]:
    """The movement pixel by pixel in float64, and which pixels are no near thing between two."""
    height, width, _ = pixels.shape
    coordinates = sources(name, amount, height, width)
    clear: NDArray[np.bool_] = np.all(abs(coordinates % 1 - 0.5) > 0.01, axis=0)  # (H, W)
    result = np.full_like(pixels, FILL)
    for row in range(height):
        for column in range(width):
            x, y = np.floor(coordinates[:, row, column] + 0.5).astype(int)
            if 0 <= x < width and 0 <= y < height:
                result[row, column] = pixels[y, x]
    return result, clear


@pytest.mark.parametrize("pixels", [scene(), gray_scene(), scene(17, 50)])
@pytest.mark.parametrize(
    ("name", "amount"),
    [
        *[("rotate", degrees) for degrees in (0, 9, -30, 45, 60)],
        *[(name, slope) for name in ("shear_x", "shear_y") for slope in (0, 0.13, -0.3, 0.45, -0.6, 0.9)],
        *[(name, distance) for name in ("translate_x", "translate_y") for distance in (0, 3, -4.7, 12.2, 100)],
    ],
)
def test_a_movement_takes_the_nearest_pixel_or_the_fill(name: str, amount: float, pixels: Pixels) -> None:
    expected, clear = brute_force(name, pixels, amount)
    assert clear.mean() > 0.8
    assert furthest(moved(name, pixels, amount)[clear], expected[clear]) == 0


@pytest.mark.parametrize("name", [name for name in TENSORFLOW if name.split("/")[0] in MOVES])
def test_movements_equal_those_of_tensorflow(name: str) -> None:
    operation, amount = name.split("/")
    found = moved(operation, scene(), float(amount))
    # In the first rows and columns TensorFlow's float32 sends some exact halves down instead of up.
    assert (found != TENSORFLOW[name]).mean() < (0.02 if "shear" in name else 1e-9)


@pytest.mark.parametrize("name", names("timm", "rotate", "translate_x", "translate_y"))
def test_turns_and_translations_equal_those_of_timm(name: str) -> None:
    expected = answer(name)
    assert furthest(moved(expected.operation, expected.given, expected.amount), expected.result) == 0


@pytest.mark.parametrize("name", names("tensor", "rotate"))
def test_turns_equal_those_of_torchvision(name: str) -> None:
    expected = answer(name)
    assert furthest(moved(expected.operation, expected.given, expected.amount), expected.result) == 0


@pytest.mark.parametrize("name", names("timm", "shear_x", "shear_y"))
def test_shears_are_those_of_timm_but_for_half_a_pixel_times_the_slope(name: str) -> None:
    expected = answer(name)
    found = moved(expected.operation, expected.given, expected.amount)
    differ = (found != expected.result).any(axis=-1).mean()
    assert 0 < differ <= abs(expected.amount) / 2 + 0.05  # timm shears about the corner of the first pixel


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("pixels", [scene(), gray_scene(), scene(1, 1)])
def test_no_movement_is_the_same_image_and_the_input_stays(name: str, pixels: Pixels) -> None:
    before = pixels.copy()
    assert furthest(moved(name, pixels, 0), before) == 0
    assert moved(name, pixels, 0.2).shape == before.shape
    assert furthest(pixels, before) == 0


@given(
    reach=st.integers(0, 40),
    row=st.integers(0, 23),
    column=st.integers(0, 31),
)
def test_cutout_covers_what_is_within_reach_and_nothing_else(reach: int, row: int, column: int) -> None:
    pixels = scene()
    found = image_ops.cutout(pixels, reach, row, column)
    y, x = np.mgrid[0:24, 0:32]
    inside = (row - reach <= y) & (y < row + reach) & (column - reach <= x) & (x < column + reach)
    assert (found[inside] == FILL).all()
    assert furthest(np.where(inside[..., None], pixels, found), pixels) == 0
    assert furthest(pixels, scene()) == 0
