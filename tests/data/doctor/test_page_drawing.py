"""Where the dots are."""

from collections import Counter

import pytest

from vitral.core.config import Size
from vitral.data.doctor.page import MOST_DOTS, SIDE, draw_sizes

IMAGE = Size(224, 224)


def test_a_doubling_is_a_step_wherever_it_is() -> None:
    drawing = draw_sizes(Counter({Size(128, 256): 1, Size(512, 1024): 1}), IMAGE)
    ticks = {tick.pixels: tick.place for tick in drawing.ticks}
    assert list(ticks) == [128, 256, 512, 1024, 2048]
    first, second = drawing.dots
    assert (first.x, SIDE - first.y) == (ticks[256], ticks[128])
    assert (second.x, SIDE - second.y) == (ticks[1024], ticks[512])
    assert first.label == "256 wide, 128 high: 1"
    assert ticks[128] < drawing.box < ticks[256]


@pytest.mark.parametrize("sizes", [{Size(8, 8): 1}, {Size(20_000, 400): 7}, {Size(8, 400): 1, Size(9000, 9000): 30}])
def test_every_dot_is_on_the_paper(sizes: dict[Size, int]) -> None:
    drawing = draw_sizes(Counter(sizes), IMAGE)
    assert all(0 <= dot.x <= SIDE and 0 <= dot.y <= SIDE and 0 < dot.radius <= 12 for dot in drawing.dots)
    assert 0 <= drawing.box <= SIDE


def test_the_rarest_sizes_are_left_out() -> None:
    sizes = Counter({Size(100 + n, 100): 2 for n in range(MOST_DOTS)} | {Size(100, 500): 1})
    drawing = draw_sizes(sizes, IMAGE)
    assert len(drawing.dots) == MOST_DOTS
    assert drawing.hidden == 1
    assert not any("500 wide" in dot.label for dot in drawing.dots)


def test_more_pictures_make_a_larger_dot() -> None:
    large, small = draw_sizes(Counter({Size(100, 100): 90, Size(200, 200): 10}), IMAGE).dots
    assert large.radius > small.radius
