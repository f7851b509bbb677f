"""What is seen, as a page: one file that needs no network.

What a template needs to know of one image, and of the model that all images share.  R x S patches, K classes.
"""

import json
import logging
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from vitral import __version__
from vitral.explanation.explanation import Array, Explanation, HeatMap, MapKind, ModelView
from vitral.explanation.faithfulness import Verdict, verdicts
from vitral.explanation.page.charts import Chart, distance_chart, readings, trial_charts
from vitral.explanation.page.pictures import (
    COLD,
    SMALL,
    WARM,
    Packed,
    address,
    addresses,
    drawing,
    filter_pictures,
    icon,
    mosaic,
    packed,
    panes,
)
from vitral.explanation.page.text import (
    belief,
    colors_told,
    crop_told,
    equation,
    filters_told,
    fineness_told,
    map_told,
    model_told,
    percent,
    positions_told,
    prefix_names,
    trial_told,
    turn_told,
)
from vitral.html.page import printable, render, write_whole
from vitral.models.base import Grid

TOP = 5  # answers that have a bar
MOST_STAGES = 600_000  # bytes for the pictures of one walk-through
STRIP = Grid(2, 32)  # panes of the band at the top of the page


class Bar(NamedTuple):
    """A class in the answer."""

    name: str
    width: float  # in hundredths of what there is
    text: str
    explained: bool  # whether the maps are about it


class Card(NamedTuple):
    """A map, and how far to believe it; without charts where that was not measured."""

    place: int  # among the maps
    title: str
    about: str
    told: str
    standing: str
    verdict: str
    charts: tuple[Chart, ...]


class Step(NamedTuple):
    """A stage of the walk-through."""

    title: str
    equation: Markup
    words: str
    shape: str
    numbers: tuple[tuple[str, str], ...]
    pictures: tuple[str, ...]


class View(NamedTuple):
    """One image on the page; empty where there is nothing of it."""

    name: str
    title: str
    model: str
    picture: str
    seen: str
    small: bool  # whether the pixels of what was seen are to be shown as squares
    size: tuple[int, int]  # width and height of the picture
    seen_size: tuple[int, int]
    frame: tuple[float, float, float, float]  # top, left, height and width of what was seen, in hundredths
    crop: str
    strip: tuple[str, ...]
    bars: tuple[Bar, ...]
    target: tuple[Bar, ...]  # the class that the maps are about, if there is one
    cards: tuple[Card, ...]
    belief: str
    layers: tuple[int, ...]  # that have attention
    heads: int
    prefix: tuple[str, ...]
    fineness: str
    readings: tuple[Chart, ...]  # one, or none
    turn: str
    colors: str
    colors_told: str
    alike: bool  # whether there is similarity to show
    steps: tuple[Step, ...]
    lacks: tuple[str, ...]
    data: Markup


class Figures(NamedTuple):
    """The model itself; empty where it has nothing to show."""

    filters: tuple[tuple[str, str], ...]  # picture, and share of the variance
    filters_told: str
    positions: str
    positions_told: str
    distances: tuple[Chart, ...]  # one, or none
    images: int


def view_of(explanation: Explanation, most: int) -> View:
    """One image as the page shows it, its attention in at most so many bytes."""
    photo, classes, layers = explanation.photo, explanation.classes, explanation.layers
    small = packed(explanation, most)
    bars = _bars(explanation)
    told = readings(layers, classes)
    colors = np.rint(255 * explanation.colors.clip(0, 1)).astype(np.uint8)  # (R, S, 3)
    return View(
        name=photo.name,
        title=explanation.title,
        model=model_told(explanation),
        picture=address(photo.picture),
        seen=address(photo.seen, 512),
        small=max(photo.seen.shape[:2]) <= SMALL,
        size=(photo.picture.shape[1], photo.picture.shape[0]),
        seen_size=(photo.seen.shape[1], photo.seen.shape[0]),
        frame=(100 * photo.top, 100 * photo.left, 100 * photo.height, 100 * photo.width),
        crop=crop_told(photo),
        strip=tuple(panes(photo.picture, STRIP)),
        bars=bars[:TOP],
        target=tuple(bar for bar in bars if bar.explained),
        cards=_cards(explanation),
        belief=_belief(explanation),
        layers=tuple(layer.layer for layer in layers if layer.attention.size),
        heads=max(small.heads, default=0),
        prefix=tuple(prefix_names(explanation.layout)),
        fineness=fineness_told(explanation, small.grid, small.steps) if small.cells else "",
        readings=told,
        turn=turn_told(layers, classes) if told else "",
        colors=drawing(colors) if colors.size else "",
        colors_told=colors_told(explanation.colors) if colors.size else "",
        alike=bool(small.similarity),
        steps=_steps(explanation),
        lacks=explanation.lacks,
        data=script_json(_data(explanation, small)),
    )


def _bars(explanation: Explanation) -> tuple[Bar, ...]:
    """Every class, the surest first."""
    if not explanation.classes:
        return ()
    found = explanation.probabilities
    return tuple(
        Bar(explanation.classes[label], 100 * float(found[label]), percent(float(found[label])),
            explanation.classes[label] == explanation.target)
        for label in np.argsort(-found, kind="stable")
    )  # fmt: skip


def _verdicts(explanation: Explanation) -> dict[MapKind, Verdict]:
    """How each map did; nothing where there is too little to tell."""
    faithfulness = explanation.faithfulness
    return {each.kind: each for each in verdicts(faithfulness)} if len(faithfulness.chance) > 1 else {}


def _cards(explanation: Explanation) -> tuple[Card, ...]:
    """The maps, the one to believe first."""
    judged, faithfulness = _verdicts(explanation), explanation.faithfulness
    curves = {trial.kind: trial.curve for trial in faithfulness.trials}

    def card(place: int, heat: HeatMap) -> Card:
        verdict, curve = judged.get(heat.kind), curves.get(heat.kind)
        return Card(
            place=place,
            title=heat.title,
            about=heat.about,
            told=map_told(heat),
            standing=verdict.standing if verdict else "",
            verdict=trial_told(verdict, curve, faithfulness.chance) if verdict and curve else "",
            charts=trial_charts(curve, faithfulness.chance, heat.title) if curve else (),
        )

    def merit(place: int) -> tuple[bool, float]:
        verdict = judged.get(explanation.maps[place].kind)
        return (verdict.standing == "better", verdict.both) if verdict else (False, float("-inf"))

    order = sorted(range(len(explanation.maps)), key=merit, reverse=True)
    return tuple(card(place, explanation.maps[place]) for place in order)


def _belief(explanation: Explanation) -> str:
    judged = _verdicts(explanation)
    titles = {heat.kind: heat.title for heat in explanation.maps}
    shown = [verdict for kind, verdict in judged.items() if kind in titles]
    return belief(shown, titles) if shown else ""


def _steps(explanation: Explanation) -> tuple[Step, ...]:
    pictures = iter(addresses([picture for stage in explanation.stages for picture in stage.pictures], MOST_STAGES))
    return tuple(
        Step(stage.title, equation(stage.equation), stage.words, stage.shape,
             tuple((name, f"{value:,.4g}") for name, value in stage.numbers),
             tuple(next(pictures) for _ in stage.pictures))
        for stage in explanation.stages
    )  # fmt: skip


def _data(explanation: Explanation, small: Packed) -> dict[str, object]:
    """What the script needs to know."""
    attending = [layer for layer in explanation.layers if layer.attention.size]
    maps = [(heat, np.nan_to_num(heat.values).ravel()) for heat in explanation.maps]
    return {
        "grid": explanation.layout.grid,
        "cells": small.grid,
        "prefix": prefix_names(explanation.layout),
        "maps": [
            {"told": printable(map_told(heat)), "values": [round(value, 4) for value in _unit(values)]}
            for heat, values in maps
        ],
        "layers": [
            {
                "layer": layer.layer,
                "distance": [round(float(far)) for far in np.nan_to_num(layer.distance)],
                "heads": heads,
            }
            for layer, heads in zip(attending, small.heads, strict=True)
        ],
        "steps": small.steps,
        "attention": small.cells,
        "rows": small.rows,
        "similarity": small.similarity,
    }


def _unit(values: Array) -> list[float]:
    """The values, the farthest from nothing at 1 or -1."""
    most = float(np.abs(values).max(initial=0)) or 1.0
    return (values.astype(np.float64) / most).tolist()


def script_json(value: object) -> Markup:
    """JSON that may stand inside a script: nothing in it can end the script."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def figures_of(model: ModelView) -> Figures:
    """The model itself as the page shows it."""
    tiles = filter_pictures(model.filters)
    positions = mosaic(model.positions) if model.positions.size else None
    return Figures(
        filters=tuple((drawing(tile), percent(float(share))) for tile, share in zip(tiles, model.shares, strict=True)),
        filters_told=filters_told(model.shares) if tiles else "",
        positions=drawing(positions.picture) if positions else "",
        positions_told=positions_told(model.positions, positions.tiles, positions.cells) if positions else "",
        distances=distance_chart(model.distances),
        images=model.images,
    )


TEMPLATE = Path(__file__).with_name("page.html")
MOST_ATTENTION = 3_000_000  # bytes for one image
MOST_ATTENTION_IN_ALL = 12_000_000  # bytes for all images of a page
LARGE = 20_000_000  # bytes: a page beyond it is slow to open and to send

log = logging.getLogger("vitral")


def write_page(path: Path, explanations: Sequence[Explanation]) -> None:
    """Write the page; whoever looks finds the whole file or the one before it."""
    text = page(explanations)
    write_whole(path, text)
    if (size := len(text.encode())) > LARGE:
        log.info(f"{path} has {size / 1e6:.0f} MB: give fewer images for a page that opens at once")


def notebook(explanation: Explanation) -> str:
    """The page in a frame of its own, as a notebook shows it."""
    title = escape(printable(f"What {explanation.title} sees in {explanation.photo.name}"))
    style = "width:100%;height:min(85vh,60rem);border:0;border-radius:8px"
    inner = escape(page([explanation]))
    return f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" srcdoc="{inner}"></iframe>'


def page(explanations: Sequence[Explanation]) -> str:
    """The page as HTML: all images, and the model that they share."""
    assert explanations, "a page is of at least one image"
    most = min(MOST_ATTENTION, MOST_ATTENTION_IN_ALL // len(explanations))
    views = [view_of(explanation, most) for explanation in explanations]
    figures = figures_of(explanations[0].model)
    return render(
        TEMPLATE,
        views=views,
        model=figures,
        missing=[missing(view, figures) for view in views],
        icon=icon(explanations[0].photo.picture),
        colors=script_json({"warm": WARM, "cold": COLD}),
        version=__version__,
    )


def missing(view: View, figures: Figures) -> list[str]:
    """What has no place on the page because there is nothing of it."""
    there = {
        "the answer": view.bars,
        "maps over the photo": view.cards,
        "which map to believe": view.belief,
        "attention by layer and head": view.layers,
        "the answer layer by layer": view.readings,
        "features in color": view.colors,
        "what looks alike": view.alike,
        "the first filters": figures.filters,
        "positions": figures.positions,
        "attention distance": figures.distances,
        "the walk-through": view.steps,
    }
    return [name for name, content in there.items() if not content]
