"""Axes: round numbers that hold what is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitral.html.charts import linear_axis, nice_step, svg_path

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda value: round(value, 6))


@pytest.mark.parametrize(
    ("span", "most", "step"), [(1, 5, 0.2), (1, 4, 0.5), (9, 6, 2), (90, 6, 20), (0.003, 6, 0.0005), (6, 6, 1)]
)
def test_steps_are_one_two_or_five(span: float, most: int, step: float) -> None:
    assert nice_step(span, most) == pytest.approx(step)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.31, 2.28, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]),
        (0.3, 0.9, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        (0, 0.002, [0, 0.0005, 0.001, 0.0015, 0.002]),
    ],
)
def test_a_round_axis_ends_at_ticks(low: float, high: float, ticks: list[float]) -> None:
    axis = linear_axis(low, high, 0, 100, 6)
    assert axis.values() == pytest.approx(ticks)
    assert axis.scale(ticks[0]) == 0
    assert axis.scale(ticks[-1]) == 100


def test_an_exact_axis_ends_where_the_values_end() -> None:
    axis = linear_axis(0, 9, 400, 0, 6, nice=False)
    assert axis.values() == [0, 2, 4, 6, 8]
    assert (axis.scale(0), axis.scale(9)) == (400, 0)
    assert axis.ticks()[1] == (400 - 88.9, "2")


@given(NUMBERS, NUMBERS)
def test_every_value_has_its_place_on_a_round_axis(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    axis = linear_axis(low, high, 0, 220, 6)
    assert -0.1 <= axis.scale(low) <= axis.scale(high) <= 220.1
    assert 2 <= len(axis.values()) <= 9


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1e-9, 1e6])
def test_one_value_alone_is_drawn_too(value: float) -> None:
    axis = linear_axis(value, value, 0, 220, 6)
    assert 0 <= axis.scale(value) <= 220
    assert linear_axis(value, value, 0, 220, 6, nice=False).scale(value) == 0


def test_a_path_joins_its_points() -> None:
    assert svg_path([(0, 1.5), (10, 0)]) == "M0 1.5L10 0"
    assert svg_path([]) == ""
