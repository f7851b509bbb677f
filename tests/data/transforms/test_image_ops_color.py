from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.data.transforms.oracles import answer, furthest, names
from tests.data.transforms.scene import gray_scene, scene
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms import image_ops

FIXED = ("autocontrast", "equalize", "invert", "grayscale")
WHOLE = ("posterize", "solarize", "solarize_add")
FACTORS = ("saturation", "contrast", "brightness", "sharpness")
OTHERS = ("hue", "blur")
ALL = (*FIXED, *WHOLE, *FACTORS, *OTHERS)

# How far torchvision's functions on tensors, which do not go through Pillow, may be off in levels.
TENSOR_TOLERANCE = {
    "autocontrast": 1,  # float32, so that a whole level may be cut off to the one below
    "contrast": 1,  # the mean is not rounded to a level first
    "saturation": 1,  # the gray is not rounded to a level first
    "grayscale": 1,  # cut off, where Pillow rounds
    "hue": 8,  # Pillow keeps hue and saturation in 256 steps each
}


def operation(name: str, amount: float) -> Callable[[Pixels], Pixels]:
    function = getattr(image_ops, name)
    if name in FIXED:
        return function
    value = int(amount) if name in WHOLE else amount
    return lambda pixels: function(pixels, value)


@pytest.mark.parametrize("name", [*names("timm", *ALL), *names("pillow", *ALL)])
def test_operations_equal_those_of_timm_and_of_torchvision_on_pillow_images(name: str) -> None:
    expected = answer(name)
    assert furthest(operation(expected.operation, expected.amount)(expected.given), expected.result) == 0


@pytest.mark.parametrize("name", names("tensor", *ALL))
def test_operations_are_near_those_of_torchvision_on_tensors(name: str) -> None:
    expected = answer(name)
    found = operation(expected.operation, expected.amount)(expected.given)
    assert furthest(found, expected.result) <= TENSOR_TOLERANCE.get(expected.operation, 0)


def test_every_operation_has_an_oracle() -> None:
    asked = {answer(name).operation for name in [*names("timm", *ALL), *names("pillow", *ALL)]}
    assert asked == set(ALL)
    assert {name for name in vars(image_ops) if name in ALL} == set(ALL)


@pytest.mark.parametrize("pixels", [scene(), gray_scene()])
@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_of_one_changes_nothing(name: str, pixels: Pixels) -> None:
    assert furthest(operation(name, 1.0)(pixels), pixels) == 0


@pytest.mark.parametrize("name", ["saturation", "hue", "grayscale"])
def test_gray_images_have_no_color_to_change(name: str) -> None:
    assert furthest(operation(name, 0.3)(gray_scene()), gray_scene()) == 0


def test_all_eight_bits_are_the_image_and_none_is_black() -> None:
    assert furthest(image_ops.posterize(scene(), 8), scene()) == 0
    assert not image_ops.posterize(scene(), 0).any()


def test_solarizing_from_256_changes_nothing_and_from_0_inverts() -> None:
    assert furthest(image_ops.solarize(scene(), 256), scene()) == 0
    assert furthest(image_ops.solarize(scene(), 0), image_ops.invert(scene())) == 0


@pytest.mark.parametrize("addition", [0, 55, 220, 330, -60])
def test_solarize_add_brightens_the_dark_half_up_to_white(addition: int) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    expected = [min(max(level + addition, 0), 255) if level < 128 else level for level in range(256)]
    assert image_ops.solarize_add(levels, addition).ravel().tolist() == expected


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.6, 1.0, 1.9, 3.7])
@pytest.mark.parametrize("pixels", [scene(), gray_scene()])
def test_contrast_about_a_level_is_the_formula_cut_off_to_whole_levels(pixels: Pixels, factor: float) -> None:
    exact = 196 + factor * (pixels.astype(np.float64) - 196)
    found = image_ops.contrast_about(pixels, factor, 196)
    rounding = 1e-3  # the formula runs in float32: just below a whole level may be on it
    assert ((exact.clip(0, 255) - found < 1 + rounding) & (found - exact.clip(0, 255) < rounding)).all()


def test_contrast_turns_about_the_mean_gray_of_the_image() -> None:
    flat = image_ops.contrast(scene(), 0.0)
    assert flat.min() == flat.max() == round(float(image_ops.grayscale(scene()).mean()))


def test_blur_keeps_the_mean_and_takes_detail_away() -> None:
    blurred = image_ops.blur(scene(), 2.0)
    assert abs(blurred.mean() - scene().mean()) < 1.5
    assert blurred.std() < 0.9 * scene().std()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30)
@given(
    pixels=st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])).flatmap(
        lambda shape: arrays(np.uint8, shape)
    ),
    amount=st.floats(0.0, 1.0),
)
def test_any_image_keeps_its_shape_and_its_input_stays_as_it_was(name: str, pixels: Pixels, amount: float) -> None:
    before = pixels.copy()
    pixels.flags.writeable = False
    scaled = {"posterize": 8 * amount, "solarize": 256 * amount, "solarize_add": 110 * amount, "hue": amount - 0.5}
    change = operation(name, scaled.get(name, 2 * amount))
    found = change(pixels)
    assert found.dtype == np.uint8
    assert found.shape == before.shape
    np.testing.assert_array_equal(pixels, before)
    np.testing.assert_array_equal(change(pixels), found)
