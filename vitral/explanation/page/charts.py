"""Curves and dots as places on a page, for a template to draw.  P points, L layers, H heads, K classes."""

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

from vitral.explanation.explanation import Array, Curve, LayerView
from vitral.explanation.page.text import percent, series

WIDTH, HEIGHT = 320.0, 170.0  # of the plot, in its own units
MOST_CLASSES = 6


class Tick(NamedTuple):
    """A line of the grid, and the number beside it."""

    place: float
    text: str


class Line(NamedTuple):
    """A line through the plot in a style of the page, what it is, and what it ends at."""

    style: str
    path: str
    name: str = ""
    value: str = ""


class Dot(NamedTuple):
    """A measured point, what it says under the pointer, and the layer and head that it is of, counted from 1."""

    x: float
    y: float
    label: str
    layer: int
    head: int


Mark = tuple[int, float]  # a layer, counted from 1, and where it stands


class Chart(NamedTuple):
    """A plot of 320 x 170; `alt` says in numbers what it shows."""

    alt: str
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    across_name: str
    upward_name: str
    lines: tuple[Line, ...] = ()
    band: str = ""  # a path around it
    dots: tuple[Dot, ...] = ()
    marks: tuple[Mark, ...] = ()  # layers that can be chosen


def trial_charts(curve: Curve, chance: Sequence[Curve], name: str) -> tuple[Chart, Chart]:
    """The deletion and the insertion curve of a map, before the band that random maps fill."""
    every = [curve, *chance]
    top = _ceiling(max(float(max(each.deletion.max(), each.insertion.max())) for each in every))
    deletion = _trial(curve.shares, curve.deletion, [each.deletion for each in chance], top)
    insertion = _trial(curve.shares, curve.insertion, [each.insertion for each in chance], top)
    gone, back = curve.deletion_area, curve.insertion_area
    against = ["", ""]
    if chance:
        against = [
            f" on average, and {_mean([each.deletion_area for each in chance]):.2f} in random order",
            f" on average, and {_mean([each.insertion_area for each in chance]):.2f} in random order",
        ]
    return (
        deletion._replace(alt=_alt("go", name, curve.deletion, gone, against[0]), across_name="patches gone"),
        insertion._replace(alt=_alt("come back", name, curve.insertion, back, against[1]), across_name="patches back"),
    )


def _alt(verb: str, name: str, values: Array, area: float, against: str) -> str:
    ends = f"from {values[0]:.2f} to {values[-1]:.2f}"
    return f"While patches {verb} in the order of {name}, the probability goes {ends}: {area:.2f}{against}."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _trial(shares: Array, values: Array, chance: Sequence[Array], top: float) -> Chart:
    lines = [Line("map", _path(shares, values, top))]
    band = ""
    if chance:
        found = np.stack(chance)  # (random maps, P)
        band = _path(shares, found.max(axis=0), top) + _path(shares[::-1], found.min(axis=0)[::-1], top, "L") + "Z"
        lines.insert(0, Line("chance", _path(shares, found.mean(axis=0), top)))
    across = tuple(Tick(share * WIDTH, f"{100 * share:.0f} %") for share in (0.0, 0.5, 1.0))
    return Chart("", across, _upward(top), "", "probability", tuple(lines), band)


def _path(shares: Array, values: Array, top: float, begin: str = "M") -> str:
    """Places joined in turn, for values from 0 to `top` at shares of the width."""
    places = zip(shares, values, strict=True)
    return begin + "L".join(f"{WIDTH * x:.1f} {HEIGHT * (1 - y / top):.1f}" for x, y in places)


def _ceiling(most: float) -> float:
    """Where an axis of probabilities that reach so high may end."""
    return next((top for top in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most <= top), 1.0)


def _upward(top: float) -> tuple[Tick, ...]:
    digits = 1 if top >= 0.5 else 3 if top < 0.05 else 2
    return tuple(Tick(HEIGHT * (1 - share), f"{top * share:.{digits}f}") for share in (0.0, 0.5, 1.0))


def readings(layers: Sequence[LayerView], classes: Sequence[str]) -> tuple[Chart, ...]:
    """What the head would answer after each layer, for the classes that reach highest; none where there is no head."""
    told = [layer for layer in layers if layer.probabilities.size]
    if not told or not classes:
        return ()
    found = np.stack([layer.probabilities for layer in told])  # (L, K)
    last = [int(label) for label in np.argsort(-found[-1])[:3]]
    highest = [int(label) for label in np.argsort(-found.max(axis=0)) if int(label) not in last]
    chosen = (last + highest)[: min(MOST_CLASSES, len(classes))]
    columns = _columns(len(told))
    shares = np.array(columns, np.float32) / WIDTH
    top = _ceiling(float(found[:, chosen].max()))
    lines = tuple(
        Line(f"glass{place}", _path(shares, found[:, label], top), classes[label], percent(found[-1, label]))
        for place, label in enumerate(chosen)
    )
    names = [layer.layer for layer in told]
    alt = "; ".join(f"{classes[label]} {series([percent(value) for value in found[:, label]])}" for label in chosen[:3])
    alt = f"Probability after layer {series([str(name) for name in names])}: {alt}"
    marks = tuple(zip(names, columns, strict=True))
    return (Chart(alt, _layer_ticks(marks), _upward(top), "layer", "probability", lines, marks=marks),)


def _columns(count: int) -> tuple[float, ...]:
    """Where so many layers stand."""
    return tuple(WIDTH * (place + 0.5) / count for place in range(count))


def _layer_ticks(marks: Sequence[Mark]) -> tuple[Tick, ...]:
    each = ceil(len(marks) / 12)
    return tuple(Tick(at, str(layer)) for layer, at in marks[::each])


def distance_chart(distances: Array) -> tuple[Chart, ...]:
    """The mean attention distance of every head (layers, H); none where there is no attention."""
    if not distances.size:
        return ()
    most = float(np.nanmax(distances))
    step = _round_step(max(most, 1.0))
    top = ceil(most / step - 1e-9) * step or step
    columns = _columns(len(distances))
    dots = tuple(
        Dot(round(columns[layer], 1), round(HEIGHT * (1 - float(value) / top), 1),
            f"layer {layer + 1}, head {head + 1}: {value:.0f} pixels", layer + 1, head + 1)
        for layer, row in enumerate(distances)
        for head, value in enumerate(row)
        if np.isfinite(value)
    )  # fmt: skip
    lines = range(round(top / step) + 1)
    upward = tuple(Tick(HEIGHT * (1 - line * step / top), f"{line * step:g}") for line in lines)
    ends = [f"from {np.nanmin(row):.0f} to {np.nanmax(row):.0f}" for row in (distances[0], distances[-1])]
    alt = f"Mean attention distance: {ends[0]} pixels among the heads of layer 1, {ends[1]} in layer {len(distances)}."
    marks = tuple((layer + 1, at) for layer, at in enumerate(columns))
    return (Chart(alt, _layer_ticks(marks), upward, "layer", "pixels", dots=dots, marks=marks),)


def _round_step(span: float, most: int = 5) -> float:
    """The least of 1, 2, 5, 10, 20 and so on of which no more than so many fit in the span."""
    power = 10.0 ** floor(log10(span / most))
    return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= most * (1 + 1e-9))
