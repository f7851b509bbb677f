"""Axes and what is drawn on them: places on a page for a template to fill in."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 400.0, 220.0  # of the plot, in its own units


class Tick(NamedTuple):
    """A line of the grid, and the number beside it."""

    place: float
    text: str


class Line(NamedTuple):
    """A line through the plot, drawn in a style of the page."""

    style: str
    path: str


class Dot(NamedTuple):
    """A measured point, and what it says under the pointer."""

    style: str
    x: float
    y: float
    label: str


class Bar(NamedTuple):
    """A rectangle, and what it says under the pointer."""

    style: str
    x: float
    y: float
    width: float
    height: float
    label: str


class Chart(NamedTuple):
    """A plot of 400 x 220; `alt` says in a sentence what it shows, the legend has a style and a name for each line."""

    title: str
    alt: str
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    across_name: str
    lines: tuple[Line, ...]
    bars: tuple[Bar, ...]
    dots: tuple[Dot, ...]
    legend: tuple[tuple[str, str], ...]
    caption: str


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` along a length, with ticks at round numbers."""

    low: float
    high: float
    step: float
    length: float

    def place(self, value: float) -> float:
        """How far along the axis a value is."""
        return round((value - self.low) / (self.high - self.low) * self.length, 1)

    def ticks(self) -> list[float]:
        """The round numbers from low to high."""
        first, last = ceil(self.low / self.step - 1e-9), floor(self.high / self.step + 1e-9)
        return [round(number * self.step, 12) for number in range(first, last + 1)]


def round_step(span: float, most: int) -> float:
    """The least of 1, 2, 5, 10, 20 and so on (0.5, 0.2 ...) of which no more than so many fit in the span."""
    power = 10.0 ** floor(log10(span / most))
    return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= most * (1 + 1e-9))


def exact_axis(low: float, high: float, length: float, most: int) -> Axis:
    """An axis that ends where the values end."""
    high = high if high > low else low + 1
    return Axis(low, high, round_step(high - low, most), length)


def round_axis(low: float, high: float, length: float, most: int) -> Axis:
    """An axis that ends at round numbers, as near to the values as they can be."""
    if high <= low:
        low, high = low - abs(low) / 10 - 1e-9, high + abs(high) / 10 + 1e-9
    step = round_step(high - low, most)
    return Axis(floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step, step, length)


def path_of(places: Sequence[tuple[float, float]]) -> str:
    """The places joined in turn, as an SVG path; none for none."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""
