"""Charts of an explanation: deletion and insertion curves, logit lens, attention distance.

P points of a curve, L layers, H heads, K classes.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from vitral.explanation.explanation import Array, Curve, LayerView
from vitral.html.charts import HEIGHT, WIDTH, Axis, Bar, Chart, Dot, LegendEntry, Line, Tick, linear_axis, svg_path
from vitral.html.text import percent

MAX_CLASSES = 6


def faithfulness_charts(curve: Curve, random: Sequence[Curve], title: str) -> tuple[Chart, Chart]:
    """The deletion and the insertion curve of a map over the range of random maps, on the same axes."""
    highest = max(float(max(each.deletion.max(), each.insertion.max())) for each in (curve, *random))
    y = linear_axis(0, max(highest, 0.01), HEIGHT, 0, 5)
    deletion = _curve_chart(curve.fractions, curve.deletion, [each.deletion for each in random], y)
    insertion = _curve_chart(curve.fractions, curve.insertion, [each.insertion for each in random], y)
    return (
        deletion._replace(alt=f"Deletion curve of {title}: {deletion.alt}", x_label="patches deleted"),
        insertion._replace(alt=f"Insertion curve of {title}: {insertion.alt}", x_label="patches inserted"),
    )


def _curve_chart(fractions: Array, values: Array, random: Sequence[Array], y: Axis) -> Chart:
    x = linear_axis(0, 1, 0, WIDTH, 2)

    def points(heights: Array) -> list[tuple[float, float]]:
        return [(x.scale(share), y.scale(height)) for share, height in zip(fractions, heights, strict=True)]

    alt = f"probability from {values[0]:.2f} to {values[-1]:.2f}, area {np.trapezoid(values, fractions):.2f}"
    lines = [Line("map", svg_path(points(values)))]
    if random:
        stacked = np.stack(random)  # (random maps, P)
        mean = stacked.mean(axis=0)  # (P,)
        band = svg_path([*points(stacked.max(axis=0)), *reversed(points(stacked.min(axis=0)))])
        lines = [Line("band", f"{band}Z"), Line("random", svg_path(points(mean))), *lines]
        alt += f", of random maps {np.trapezoid(mean, fractions):.2f}"
    return Chart(f"{alt}.", x.ticks(lambda share: f"{100 * share:.0f} %"), y.ticks(), "", lines=tuple(lines))


def logit_lens_chart(layers: Sequence[LayerView], classes: Sequence[str]) -> Chart | None:
    """The probability of the leading classes after each layer; None for a model without classes or layers."""
    layers = [layer for layer in layers if layer.probabilities.size]
    if not layers or not classes:
        return None
    probabilities = np.stack([layer.probabilities for layer in layers])  # (L, K)
    last = [int(label) for label in np.argsort(-probabilities[-1])[:3]]
    highest = [int(label) for label in np.argsort(-probabilities.max(axis=0)) if int(label) not in last]
    leading = (last + highest)[: min(MAX_CLASSES, len(classes))]
    numbers = [layer.layer for layer in layers]
    columns = _layer_columns(numbers)
    centers = [column.x + column.width / 2 for column in columns]
    y = linear_axis(0, max(float(probabilities[:, leading].max()), 0.01), HEIGHT, 0, 5)
    described = [f"{classes[label]} {', '.join(map(percent, probabilities[:, label]))}" for label in leading[:3]]
    return Chart(
        alt=f"Probability after layer {', '.join(map(str, numbers))}: {'; '.join(described)}",
        x_ticks=_layer_ticks(columns),
        y_ticks=y.ticks(),
        x_label="layer",
        y_label="probability",
        lines=tuple(
            Line(f"class{rank}", svg_path([*zip(centers, map(y.scale, probabilities[:, label]), strict=True)]))
            for rank, label in enumerate(leading)
        ),
        bars=columns,
        legend=tuple(
            LegendEntry(f"class{rank}", classes[label], percent(float(probabilities[-1, label])))
            for rank, label in enumerate(leading)
        ),
    )


def distance_chart(distances: Array, images: int) -> Chart | None:
    """The mean attention distance of every head (L, H), a column of dots a layer; None without attention."""
    if not distances.size:
        return None
    columns = _layer_columns(range(1, len(distances) + 1))
    y = linear_axis(0, max(float(np.nanmax(distances)), 1.0), HEIGHT, 0, 5)
    dots = tuple(
        Dot(
            style="head",
            x=round(column.x + column.width / 2, 1),
            y=y.scale(value),
            label=f"layer {column.layer}, head {head}: {value:.3g} pixels",
            layer=column.layer,
            head=head,
        )
        for column, row in zip(columns, distances, strict=True)
        for head, value in enumerate(row, start=1)
        if np.isfinite(value)
    )
    first, last = (f"{np.nanmin(row):.3g} to {np.nanmax(row):.3g} pixels" for row in (distances[0], distances[-1]))
    counted = "1 image" if images == 1 else f"{images:,} images"
    alt = f"Mean attention distance over {counted}: {first} in the first layer, {last} in the last."
    return Chart(
        alt=alt,
        x_ticks=_layer_ticks(columns),
        y_ticks=y.ticks(),
        x_label="layer",
        y_label="pixels",
        title="Attention distance",
        bars=columns,
        dots=dots,
        caption=f"One dot per head. {alt}",
    )


def _layer_columns(numbers: Sequence[int]) -> tuple[Bar, ...]:
    """The columns of the layers, side by side, by which a page lets the reader choose one."""
    width = WIDTH / len(numbers)
    return tuple(
        Bar("layer-column", round(index * width, 1), 0.0, round(width, 1), HEIGHT, layer=number)
        for index, number in enumerate(numbers)
    )


def _layer_ticks(columns: Sequence[Bar]) -> tuple[Tick, ...]:
    return tuple(
        Tick(round(column.x + column.width / 2, 1), str(column.layer)) for column in columns[:: ceil(len(columns) / 12)]
    )
