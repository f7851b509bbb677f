"""The sizes of the pictures, drawn: places on a page for a template to fill in."""

from collections import Counter
from math import floor, log2, sqrt
from typing import NamedTuple

from vitral.config import Size

SIDE = 320.0  # of the drawing, in its own units
MOST_DOTS = 400


class Dot(NamedTuple):
    """All the pictures of one size: a place, a radius, and what it stands for."""

    x: float
    y: float
    radius: float
    label: str


class Tick(NamedTuple):
    """A line of the grid at a number of pixels."""

    place: float
    pixels: int


class Drawing(NamedTuple):
    """Width to the right and height upwards, both by doublings; `box` is the corner of the image of the model."""

    side: float
    dots: tuple[Dot, ...]
    ticks: tuple[Tick, ...]
    box: float
    hidden: int  # sizes that are not drawn, being the rarest


def draw_sizes(sizes: Counter[Size], image: Size) -> Drawing:
    """A dot for each size, of an area that follows how many pictures have it."""
    shown = sizes.most_common(MOST_DOTS)
    sides = [side for size, _ in shown for side in size] + list(image)
    low, high = floor(log2(min(sides))), floor(log2(max(sides))) + 1
    most = shown[0][1]

    def place(pixels: int) -> float:
        return round((log2(pixels) - low) / (high - low) * SIDE, 1)

    dots = tuple(
        Dot(
            place(size.width),
            SIDE - place(size.height),
            round(2.5 + 9.5 * sqrt(count / most) * (most > 1), 1),
            f"{size.width} wide, {size.height} high: {count:,}",
        )
        for size, count in shown
    )
    ticks = tuple(Tick(place(2**power), 2**power) for power in range(low, high + 1))
    return Drawing(SIDE, dots, ticks, place(max(image)), len(sizes) - len(shown))
