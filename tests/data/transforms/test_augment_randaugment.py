from collections import Counter

import numpy as np
import pytest

from tests.data.transforms.oracles import TENSORFLOW, furthest
from tests.data.transforms.scene import COLUMNS, ROWS, gray_scene, scene
from tests.errors import raises
from vitral.core.config import override
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms import image_ops
from vitral.data.transforms import image_ops as geometry
from vitral.data.transforms.augment import (
    OPERATIONS,
    RandAugment,
    enhance_factor,
    posterize_bits,
    solarize_threshold,
)

SIXTEEN = """AutoContrast Equalize Invert Rotate Posterize Solarize Color Contrast Brightness Sharpness ShearX ShearY
TranslateX TranslateY Cutout SolarizeAdd"""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def applied(name: str, pixels: Pixels, magnitude: float, seed: int = 0) -> Pixels:
    return OPERATIONS[name](pixels, magnitude / 10, rng(seed))


def test_the_operations_are_the_sixteen_of_big_vision() -> None:
    assert list(OPERATIONS) == SIXTEEN.split()


@pytest.mark.parametrize("name", [name for name in TENSORFLOW if name.split("/")[0] in OPERATIONS])
def test_operations_equal_those_of_tensorflow(name: str) -> None:
    operation, magnitude = name.split("/")
    factor = enhance_factor(float(magnitude) / 10)
    if operation == "Contrast":  # turns about the number of pixels / 256, which is 3 here and 196 at 224x224
        found = image_ops.contrast_about(scene(), factor, ROWS * COLUMNS // 256)
    else:
        found = applied(operation, scene(), float(magnitude))
    # Pillow rounds the gray and the smoothed image, which TensorFlow cuts off; the factor widens that one level.
    tolerance = 1 + abs(1 - factor) if operation in {"Color", "Sharpness"} else 0
    assert furthest(found, TENSORFLOW[name]) <= tolerance


# Magnitude: factor of the four enhancements, bits kept, threshold of solarize, each worked out by hand.
@pytest.mark.parametrize(
    ("magnitude", "factor", "bits", "threshold"),
    [(0, 0.1, 1, 0), (3, 0.64, 1, 76), (9, 1.72, 3, 230), (10, 1.9, 4, 0), (15, 2.8, 6, 128), (20, 3.7, 8, 0),
     (25, 4.6, 1, 128)],
)  # fmt: skip
def test_magnitudes_have_the_strengths_of_big_vision(magnitude: int, factor: float, bits: int, threshold: int) -> None:
    assert enhance_factor(magnitude / 10) == pytest.approx(factor)
    assert posterize_bits(magnitude / 10) == bits
    assert solarize_threshold(magnitude / 10) == threshold


@pytest.mark.parametrize("magnitude", [0, 10, 15, 20])
def test_contrast_turns_about_196_as_at_224(magnitude: int) -> None:
    expected = image_ops.contrast_about(scene(), enhance_factor(magnitude / 10), 196)
    assert furthest(applied("Contrast", scene(), magnitude), expected) == 0


@pytest.mark.parametrize(("name", "move", "side"), [("TranslateX", "translate_x", 1), ("TranslateY", "translate_y", 0)])
@pytest.mark.parametrize("magnitude", [7, 10, 20])
@pytest.mark.parametrize("shape", [(224, 224), (48, 96)])
def test_translations_are_by_100_pixels_of_224_either_way(
    name: str, move: str, side: int, magnitude: int, shape: tuple[int, int]
) -> None:
    pixels = scene(*shape)
    distance = magnitude * 10 * shape[side] / 224
    either = [getattr(geometry, move)(pixels, sign * distance).tobytes() for sign in (-1, 1)]
    found = {applied(name, pixels, magnitude, seed).tobytes() for seed in range(12)}
    assert found == set(either)


@pytest.mark.parametrize(
    ("name", "move", "unit"), [("Rotate", "rotate", 3.0), ("ShearX", "shear_x", 0.03), ("ShearY", "shear_y", 0.03)]
)
@pytest.mark.parametrize("magnitude", [10, 15])
def test_turns_and_shears_grow_with_the_magnitude_either_way(name: str, move: str, unit: float, magnitude: int) -> None:
    either = [getattr(geometry, move)(scene(), sign * unit * magnitude).tobytes() for sign in (-1, 1)]
    assert {applied(name, scene(), magnitude, seed).tobytes() for seed in range(12)} == set(either)


@pytest.mark.parametrize("magnitude", range(31))
def test_cutout_covers_at_most_a_square_of_80_pixels_of_224_at_magnitude_10(magnitude: int) -> None:
    white = np.full((224, 224, 1), 255, dtype=np.uint8)
    reach = int(magnitude / 10 * 40)
    covered = [int((applied("Cutout", white, magnitude, seed) == 128).sum()) for seed in range(40)]
    assert max(covered) <= (2 * reach) ** 2
    assert min(covered) >= reach**2  # the center is in the image, so a quarter of the square is


def test_cutout_shrinks_with_the_image() -> None:
    white = np.full((28, 56, 3), 255, dtype=np.uint8)
    covered = [int((applied("Cutout", white, 10, seed)[..., 0] == 128).sum()) for seed in range(60)]
    assert max(covered) == 100  # 40 pixels of 224 are 5 of 28


@pytest.mark.parametrize("magnitude", [10, 20])
def test_solarize_add_grows_without_end(magnitude: int) -> None:
    expected = image_ops.solarize_add(scene(), 11 * magnitude)
    assert furthest(applied("SolarizeAdd", scene(), magnitude), expected) == 0


def test_every_operation_is_drawn_equally_often_and_always_applied() -> None:
    outcomes = {
        applied(name, scene(), 15, seed).tobytes(): name for name in OPERATIONS if name != "Cutout" for seed in range(9)
    }
    assert len(outcomes) == 20  # five of them go either way
    draws = 3200
    one = RandAugment(layers=1, magnitude=15)
    # Whatever is none of these is a Cutout, which differs from one draw to the next.
    found = Counter(outcomes.get(one.apply(scene(), rng(seed)).tobytes(), "Cutout") for seed in range(draws))
    for name in OPERATIONS:
        assert abs(found[name] - draws / 16) < 4.5 * (draws / 16) ** 0.5


def test_layers_follow_one_another() -> None:
    def through(layers: int, seed: int) -> Pixels:
        generator, pixels = rng(seed), scene()
        for _ in range(layers):
            pixels = RandAugment(layers=1, magnitude=10).apply(pixels, generator)
        return pixels

    for seed in range(20):
        assert furthest(RandAugment(layers=3, magnitude=10).apply(scene(), rng(seed)), through(3, seed)) == 0


@pytest.mark.parametrize("magnitude", [0, 10, 15, 20, 30])
@pytest.mark.parametrize("name", OPERATIONS)
def test_gray_images_go_through_every_operation(name: str, magnitude: int) -> None:
    before = gray_scene()
    found = applied(name, before, magnitude)
    assert found.shape == before.shape
    assert found.dtype == np.uint8
    assert furthest(before, gray_scene()) == 0
    if name == "Color":
        assert furthest(found, before) == 0


@pytest.mark.parametrize("setting", ["layers=0", "magnitude=-1", "magnitude=31"])
def test_settings_beyond_reason_are_refused(setting: str) -> None:
    with raises("config.out_of_range", *setting.split("=")):
        override(RandAugment(), [setting])
