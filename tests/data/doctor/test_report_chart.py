"""Dots stand where their sizes say."""

import re
from collections import Counter

import pytest

from vitral.core.config import Size
from vitral.data.doctor.report import MAX_DOTS, SIDE, size_chart
from vitral.html.charts import Chart

IMAGE = Size(224, 224)


def corner(chart: Chart) -> tuple[float, float]:
    """The upper right corner of the dashed box."""
    (box,) = [line for line in chart.lines if line.style == "box"]
    _, y, x, _ = map(float, re.findall(r"[\d.]+", box.path))
    return x, y


def test_a_doubling_is_a_step_wherever_it_is() -> None:
    chart = size_chart(Counter({Size(128, 256): 1, Size(512, 1024): 1}), IMAGE)
    x, y = ({tick.label: tick.position for tick in ticks} for ticks in (chart.x_ticks, chart.y_ticks))
    assert list(x) == list(y) == ["128", "256", "512", "1024", "2048"]
    first, second = chart.dots
    assert (first.x, first.y) == (x["256"], y["128"])
    assert (second.x, second.y) == (x["1024"], y["512"])
    assert first.label == "256 wide, 128 high: 1"
    right, top = corner(chart)
    assert x["128"] < right < x["256"]
    assert y["256"] < top < y["128"]


@pytest.mark.parametrize("sizes", [{Size(8, 8): 1}, {Size(20_000, 400): 7}, {Size(8, 400): 1, Size(9000, 9000): 30}])
def test_every_dot_is_inside_the_plot(sizes: dict[Size, int]) -> None:
    chart = size_chart(Counter(sizes), IMAGE)
    assert all(0 <= dot.x <= SIDE and 0 <= dot.y <= SIDE and 0 < dot.radius <= 12 for dot in chart.dots)
    assert all(0 <= position <= SIDE for position in corner(chart))


def test_the_rarest_sizes_are_left_out() -> None:
    sizes = Counter({Size(100 + n, 100): 2 for n in range(MAX_DOTS)} | {Size(100, 500): 1})
    chart = size_chart(sizes, IMAGE)
    assert len(chart.dots) == MAX_DOTS
    assert "the 1 rarest sizes" in chart.caption
    assert not any("500 wide" in dot.label for dot in chart.dots)


def test_more_images_make_a_larger_dot() -> None:
    large, small = size_chart(Counter({Size(100, 100): 90, Size(200, 200): 10}), IMAGE).dots
    assert large.radius > small.radius


def test_the_box_is_visible_where_the_images_are_larger_than_a_power_of_two() -> None:
    x, y = corner(size_chart(Counter({Size(256, 341): 3}), Size(64, 64)))
    assert x > 0
    assert y < SIDE
