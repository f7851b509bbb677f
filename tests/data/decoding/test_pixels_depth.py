"""Deep samples go to the nearest of 256 levels."""

from fractions import Fraction

import numpy as np
import pytest

from tests.errors import raises
from vitral.data.decoding.pixels import floats_to_8bit, to_8bit


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16])
def test_every_value_goes_to_the_nearest_level(bits: int) -> None:
    highest = 2**bits - 1
    values = np.arange(highest + 1)
    truth = [round(Fraction(int(value) * 255, highest)) for value in values]
    assert to_8bit(values, highest).tolist() == truth
    if bits == 16:
        assert truth == [round(value / 257) for value in values.tolist()]


def test_floats_of_the_unit_range_reach_both_ends() -> None:
    assert floats_to_8bit(np.array([0.0, 0.001, 0.25, 0.9981, 1.0]), "a").tolist() == [0, 0, 64, 255, 255]
    with raises("data.pixel_out_of_range", "a.tif", "0 to 255"):
        floats_to_8bit(np.array([0.0, 255.0]), "a.tif")
