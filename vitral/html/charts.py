"""Charts for HTML pages: positions in SVG units, which the macros of `charts.html` draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 400.0, 220.0  # of a plot, in SVG units


class Tick(NamedTuple):
    """A tick of an axis and its label."""

    position: float
    label: str


class Line(NamedTuple):
    """An SVG path in a CSS class."""

    style: str
    path: str


class Dot(NamedTuple):
    """A point with a tooltip; `layer` and `head` count from 1 and are 0 where the point is not about a head."""

    style: str
    x: float
    y: float
    label: str
    radius: float = 3.2
    layer: int = 0
    head: int = 0


class Bar(NamedTuple):
    """A rectangle with a tooltip; `layer` counts from 1 and is 0 where the rectangle is not about a layer."""

    style: str
    x: float
    y: float
    width: float
    height: float
    label: str = ""
    layer: int = 0


class LegendEntry(NamedTuple):
    """A CSS class, the name of what it marks, and a value."""

    style: str
    name: str
    value: str = ""


class Chart(NamedTuple):
    """A plot; `alt` describes it in a sentence for readers who cannot see it."""

    alt: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    y_label: str = ""
    title: str = ""
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    dots: tuple[Dot, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    caption: str = ""
    width: float = WIDTH
    height: float = HEIGHT


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` along the positions from `start` to `end`, with ticks at multiples of `step`."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def scale(self, value: float) -> float:
        """The position of a value."""
        return round(self.start + float(value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def values(self) -> list[float]:
        """The values of the ticks."""
        first, last = ceil(self.low / self.step - 1e-9), floor(self.high / self.step + 1e-9)
        return [round(number * self.step, 12) for number in range(first, last + 1)]

    def ticks(self, label: Callable[[float], str] = "{:g}".format) -> tuple[Tick, ...]:
        """The ticks, each with the label of its value."""
        return tuple(Tick(self.scale(value), label(value)) for value in self.values())


def linear_axis(low: float, high: float, start: float, end: float, max_ticks: int, nice: bool = True) -> Axis:
    """An axis with ticks at round values; a `nice` axis also begins and ends at round values."""
    if high <= low:
        margin = abs(low) / 10 + 1e-9 if nice else 0.0
        low, high = low - margin, high + (margin or 1.0)
    step = nice_step(high - low, max_ticks)
    if nice:
        low, high = floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step
    return Axis(low, high, step, start, end)


def nice_step(span: float, max_ticks: int) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that fits at most `max_ticks` times into the span."""
    power = 10.0 ** floor(log10(span / max_ticks))
    return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= max_ticks * (1 + 1e-9))


def svg_path(points: Sequence[tuple[float, float]]) -> str:
    """The points joined by straight lines, as an SVG path; empty for no points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""
