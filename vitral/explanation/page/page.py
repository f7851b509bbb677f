"""The page of an explanation: one HTML file that works offline.

R x S patches, K classes, P points of a curve, L layers, H heads.
"""

import logging
from collections.abc import Sequence
from html import escape
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from vitral import __version__
from vitral.core.storage import write_file_atomically
from vitral.explanation.explanation import (
    MAP_TITLES,
    MIN_EFFECT,
    Array,
    Curve,
    Explanation,
    LayerView,
    MapKind,
    MapScore,
    ModelView,
)
from vitral.explanation.page import pictures, text
from vitral.html.charts import HEIGHT, WIDTH, Axis, Bar, Chart, Dot, LegendEntry, Line, Tick, linear_axis, svg_path
from vitral.html.heatmap import color_stops
from vitral.html.page import printable, render, script_json
from vitral.html.text import percent
from vitral.models.base import Grid

TEMPLATE = Path(__file__).with_name("page.html")
TOP = 5  # classes in the list of predictions
MAX_CLASSES = 6  # in the chart of the logit lens
MAX_STEP_BYTES = 600_000  # for the images of one walkthrough
MAX_ATTENTION = 3_000_000  # bytes for one image
MAX_ATTENTION_IN_ALL = 12_000_000  # bytes for all images of a page
LARGE = 20_000_000  # bytes: a larger page is slow to open and to send
STRIP = Grid(2, 32)  # cells of the strip at the top of the page

log = logging.getLogger("vitral")


class MapCard(NamedTuple):
    """A map with its score; without charts where the faithfulness test was not run."""

    number: int  # among the maps
    kind: MapKind
    description: str
    verdict: str
    score: str
    charts: tuple[Chart, ...]


class ImageSection(NamedTuple):
    """The part of the page about one image: the explanation, and what is drawn from it."""

    explanation: Explanation
    image: str  # this and `crop` are data URIs
    crop: str
    predictions: tuple[tuple[str, float], ...]  # all classes, most probable first
    cards: tuple[MapCard, ...]
    verdict: str
    packed: pictures.PackedAttention
    logit_lens: Chart | None
    colors: str
    steps_images: tuple[tuple[str, ...], ...]
    data: Markup  # JSON for the script


class ModelSection(NamedTuple):
    """The part of the page about the model itself; empty where it has nothing to show."""

    filters: tuple[tuple[str, str], ...]  # data URI, and explained variance
    filters_text: str
    positions: str
    positions_text: str
    distances: Chart | None


def write_page(path: Path, explanations: Sequence[Explanation]) -> None:
    """Write the page; readers see the old file or the whole new one."""
    html = page(explanations)
    write_file_atomically(path, html)
    if (size := len(html.encode())) > LARGE:
        log.info(f"the page {path} is large, {size / 1e6:.0f} MB; explain fewer images for a page that opens quickly")


def notebook(explanation: Explanation) -> str:
    """The page in a frame, for a notebook."""
    title = escape(printable(f"{explanation.photo.name} explained by {explanation.model_name}"))
    style = "width:100%;height:min(85vh,60rem);border:0;border-radius:8px"
    inner = escape(page([explanation]))
    return f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" srcdoc="{inner}"></iframe>'


def page(explanations: Sequence[Explanation]) -> str:
    """The page as HTML: one section per image, and one for the model that they share."""
    assert explanations, "a page is of at least one image"
    max_bytes = min(MAX_ATTENTION, MAX_ATTENTION_IN_ALL // len(explanations))
    sections = [image_section(explanation, max_bytes) for explanation in explanations]
    model = model_section(explanations[0].model)
    return render(
        TEMPLATE,
        sections=sections,
        model=model,
        MAP_TITLES=MAP_TITLES,
        MIN_EFFECT=MIN_EFFECT,
        icon=pictures.page_icon(explanations[0].photo.image),
        colors=color_stops(),
        version=__version__,
        TOP=TOP,
        MAX_PNG_SIDE=pictures.MAX_PNG_SIDE,
        strip=lambda photo: pictures.mean_colors(photo.image, STRIP),
        percent=percent,
        text=text,
    )


def image_section(explanation: Explanation, max_bytes: int) -> ImageSection:
    """One image, its attention in at most so many bytes."""
    photo, scores = explanation.photo, explanation.faithfulness.scores()
    packed = pictures.pack_attention(explanation, max_bytes)
    order = np.argsort(-explanation.probabilities, kind="stable") if explanation.classes else ()
    drawn = [image for step in explanation.steps for image in step.images]
    images = iter(pictures.encode_images(drawn, MAX_STEP_BYTES))
    colors = np.rint(255 * explanation.feature_colors.clip(0, 1)).astype(np.uint8)  # (R, S, 3)
    return ImageSection(
        explanation=explanation,
        image=pictures.encode_image(photo.image),
        crop=pictures.encode_image(photo.crop, 512),
        predictions=tuple((explanation.classes[label], float(explanation.probabilities[label])) for label in order),
        cards=_map_cards(explanation, scores),
        verdict=text.describe_scores({kind: scores[kind] for kind in explanation.maps if kind in scores}),
        packed=packed,
        logit_lens=logit_lens_chart(explanation.layers, explanation.classes),
        colors=pictures.encode_png(colors) if colors.size else "",
        steps_images=tuple(tuple(next(images) for _ in step.images) for step in explanation.steps),
        data=script_json(_script_data(explanation, packed)),
    )


def _map_cards(explanation: Explanation, scores: dict[MapKind, MapScore]) -> tuple[MapCard, ...]:
    """The maps, most faithful first."""
    curves, random = explanation.faithfulness
    cards = {}
    for number, (kind, values) in enumerate(explanation.maps.items()):
        score, curve, title = scores.get(kind), curves.get(kind), MAP_TITLES[kind]
        said = text.describe_score(score, curve, random) if score and curve else ""
        charts = faithfulness_charts(curve, random, title) if curve else ()
        verdict, merit = (score.verdict, score.combined) if score else ("", 0.0)
        card = MapCard(number, kind, text.describe_map(title, values), verdict, said, charts)
        cards[card] = verdict == "better", merit
    return tuple(sorted(cards, key=cards.__getitem__, reverse=True))


def _script_data(explanation: Explanation, packed: pictures.PackedAttention) -> dict[str, object]:
    """What the script of the page needs."""
    layers = [layer for layer in explanation.layers if layer.attention.size]
    maps = [(MAP_TITLES[kind], np.nan_to_num(values)) for kind, values in explanation.maps.items()]
    units = [pictures.scale_to_unit(values.ravel().astype(np.float64)).tolist() for _, values in maps]
    distances = [np.nan_to_num(layer.distance).tolist() for layer in layers]
    return {
        "grid": explanation.layout.grid,
        "cells": packed.grid,
        "prefix": text.prefix_names(explanation.layout),
        "maps": [
            {"description": printable(text.describe_map(*each)), "values": [round(value, 4) for value in unit]}
            for each, unit in zip(maps, units, strict=True)
        ],
        "layers": [
            {"layer": layer.layer, "distance": [round(value) for value in distance], "heads": heads}
            for layer, distance, heads in zip(layers, distances, packed.heads, strict=True)
        ],
        "steps": packed.steps,
        "attention": packed.cells,
        "rows": packed.rows,
        "similarity": packed.similarity,
    }


def model_section(model: ModelView) -> ModelSection:
    """The model itself, as the pages of explanations and runs show it."""
    tiles = pictures.filter_pictures(model.filters)
    ratios = [percent(float(ratio)) for ratio in model.explained_variance]
    positions = pictures.position_mosaic(model.positions) if model.positions.size else None
    return ModelSection(
        filters=tuple(zip(map(pictures.encode_png, tiles), ratios, strict=True)),
        filters_text=text.describe_filters(model.filters, model.explained_variance) if tiles else "",
        positions=pictures.encode_png(positions.picture) if positions else "",
        positions_text=text.describe_positions(model.positions, positions.tiles, positions.cells) if positions else "",
        distances=distance_chart(model.distances, model.images),
    )


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
        mean = np.mean(random, axis=0)  # (P,)
        band = svg_path([*points(np.max(random, axis=0)), *reversed(points(np.min(random, axis=0)))])
        lines = [Line("band", f"{band}Z"), Line("random", svg_path(points(mean))), *lines]
        alt += f", of random maps {np.trapezoid(mean, fractions):.2f}"
    return Chart(f"{alt}.", x.ticks(lambda share: f"{100 * share:.0f}%"), y.ticks(), "", lines=tuple(lines))


def logit_lens_chart(layers: Sequence[LayerView], classes: Sequence[str]) -> Chart | None:
    """The probability of the leading classes after each layer; None for a model without classes or layers."""
    layers = [layer for layer in layers if layer.probabilities.size]
    if not layers or not classes:
        return None
    probabilities = np.stack([layer.probabilities for layer in layers])  # (L, K)
    last = [int(label) for label in np.argsort(-probabilities[-1])[:3]]
    highest = [int(label) for label in np.argsort(-probabilities.max(axis=0)) if int(label) not in last]
    leading = (last + highest)[:MAX_CLASSES]
    numbers = [layer.layer for layer in layers]
    columns = _layer_columns(numbers)
    centers = [column.x + column.width / 2 for column in columns]
    y = linear_axis(0, max(float(probabilities[:, leading].max()), 0.01), HEIGHT, 0, 5)
    curves = [(f"class{rank}", classes[label], probabilities[:, label]) for rank, label in enumerate(leading)]
    lines = [Line(style, svg_path([*zip(centers, map(y.scale, values), strict=True)])) for style, _, values in curves]
    legend = [LegendEntry(style, name, percent(float(values[-1]))) for style, name, values in curves]
    described = [f"{name} {', '.join(map(percent, values))}" for _, name, values in curves[:3]]
    alt = f"Probability after layer {', '.join(map(str, numbers))}: {'; '.join(described)}"
    chart = Chart(alt, _layer_ticks(columns), y.ticks(), "layer", "probability", bars=columns)
    return chart._replace(lines=tuple(lines), legend=tuple(legend))


def distance_chart(distances: Array, images: int) -> Chart | None:
    """The mean attention distance of every head (L, H), a column of dots a layer; None without attention."""
    if not distances.size:
        return None
    columns = _layer_columns(range(1, len(distances) + 1))
    y = linear_axis(0, max(float(np.nanmax(distances)), 1.0), HEIGHT, 0, 5)
    dots = []
    for column, row in zip(columns, distances, strict=True):
        x, layer = round(column.x + column.width / 2, 1), column.layer
        for head, value in enumerate(row, start=1):
            label = f"layer {layer}, head {head}: {value:.3g} pixels"
            if np.isfinite(value):
                dots.append(Dot("head", x, y.scale(value), label, layer=layer, head=head))
    first, last = (f"{np.nanmin(row):.3g} to {np.nanmax(row):.3g} pixels" for row in (distances[0], distances[-1]))
    counted = "1 image" if images == 1 else f"{images:,} images"
    alt = f"Mean attention distance over {counted}: {first} in the first layer, {last} in the last."
    chart = Chart(alt, _layer_ticks(columns), y.ticks(), "layer", "pixels", "Attention distance", bars=columns)
    return chart._replace(dots=tuple(dots), caption=f"One dot per head. {alt}")


def _layer_columns(numbers: Sequence[int]) -> tuple[Bar, ...]:
    """The columns of the layers, side by side, by which a page lets the reader choose one."""
    width = WIDTH / len(numbers)
    return tuple(
        Bar("layer-column", round(index * width, 1), 0.0, round(width, 1), HEIGHT, layer=number)
        for index, number in enumerate(numbers)
    )


def _layer_ticks(columns: Sequence[Bar]) -> tuple[Tick, ...]:
    shown = columns[:: ceil(len(columns) / 12)]
    return tuple(Tick(round(column.x + column.width / 2, 1), str(column.layer)) for column in shown)
