"""The page of an explanation: one HTML file that works offline.  R x S patches, K classes."""

import json
import logging
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from vitral import __version__
from vitral.core.storage import write_file_atomically
from vitral.explanation.explanation import MAP_TITLES, Array, Explanation, MapKind, ModelView
from vitral.explanation.faithfulness import MapScore, score_maps
from vitral.explanation.page import text
from vitral.explanation.page.charts import distance_chart, faithfulness_charts, logit_lens_chart
from vitral.explanation.page.pictures import (
    MAX_PNG_SIDE,
    NEGATIVE_COLORS,
    POSITIVE_COLORS,
    PackedAttention,
    encode_image,
    encode_images,
    encode_png,
    filter_pictures,
    mean_colors,
    pack_attention,
    page_icon,
    position_mosaic,
    scale_to_unit,
)
from vitral.html.charts import Chart
from vitral.html.page import printable, render
from vitral.html.text import percent
from vitral.models.base import Grid

TEMPLATE = Path(__file__).with_name("page.html")
TOP = 5  # classes in the list of predictions
MAX_STEP_BYTES = 600_000  # for the images of one walkthrough
MAX_ATTENTION = 3_000_000  # bytes for one image
MAX_ATTENTION_IN_ALL = 12_000_000  # bytes for all images of a page
LARGE = 20_000_000  # bytes: a larger page is slow to open and to send
STRIP = Grid(2, 32)  # cells of the strip at the top of the page

log = logging.getLogger("vitral")


class MapCard(NamedTuple):
    """A map with its score; without charts where the faithfulness test was not run."""

    number: int  # among the maps
    title: str
    about: str
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
    layers: tuple[int, ...]  # that have attention
    heads: int
    precision: str
    logit_lens: Chart | None
    colors: str
    steps_images: tuple[tuple[str, ...], ...]
    has_similarity: bool
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
        log.info(f"{path} has {size / 1e6:.0f} MB; explain fewer images for a page that opens quickly")


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
        omitted=[omitted(section, model) for section in sections],
        icon=page_icon(explanations[0].photo.image),
        colors=script_json({"positive": POSITIVE_COLORS, "negative": NEGATIVE_COLORS}),
        version=__version__,
        TOP=TOP,
        MAX_PNG_SIDE=MAX_PNG_SIDE,
        strip=lambda photo: mean_colors(photo.image, STRIP),
        percent=percent,
        text=text,
    )


def image_section(explanation: Explanation, max_bytes: int) -> ImageSection:
    """One image, its attention in at most so many bytes."""
    photo, packed, scores = (
        explanation.photo,
        pack_attention(explanation, max_bytes),
        score_maps(explanation.faithfulness),
    )
    order = np.argsort(-explanation.probabilities, kind="stable") if explanation.classes else ()
    images = iter(encode_images([image for step in explanation.steps for image in step.images], MAX_STEP_BYTES))
    colors = np.rint(255 * explanation.feature_colors.clip(0, 1)).astype(np.uint8)  # (R, S, 3)
    return ImageSection(
        explanation=explanation,
        image=encode_image(photo.image),
        crop=encode_image(photo.crop, 512),
        predictions=tuple((explanation.classes[label], float(explanation.probabilities[label])) for label in order),
        cards=_map_cards(explanation, scores),
        verdict=text.describe_scores({kind: scores[kind] for kind in explanation.maps if kind in scores}),
        layers=tuple(layer.layer for layer in explanation.layers if layer.attention.size),
        heads=max(packed.heads, default=0),
        precision=text.describe_precision(explanation, packed.grid, packed.steps) if packed.cells else "",
        logit_lens=logit_lens_chart(explanation.layers, explanation.classes),
        colors=encode_png(colors) if colors.size else "",
        steps_images=tuple(tuple(next(images) for _ in step.images) for step in explanation.steps),
        has_similarity=bool(packed.similarity),
        data=script_json(_script_data(explanation, packed)),
    )


def _map_cards(explanation: Explanation, scores: dict[MapKind, MapScore]) -> tuple[MapCard, ...]:
    """The maps, most faithful first."""
    faithfulness, kinds = explanation.faithfulness, list(explanation.maps)

    def card(kind: MapKind) -> MapCard:
        score, curve, title = scores.get(kind), faithfulness.curves.get(kind), MAP_TITLES[kind]
        return MapCard(
            number=kinds.index(kind),
            title=title,
            about=text.MAP_DESCRIPTIONS[kind],
            description=text.describe_map(title, explanation.maps[kind]),
            verdict=score.verdict if score else "",
            score=text.describe_score(score, curve, faithfulness.random) if score and curve else "",
            charts=faithfulness_charts(curve, faithfulness.random, title) if curve else (),
        )

    def merit(kind: MapKind) -> tuple[bool, float]:
        score = scores.get(kind)
        return (score.verdict == "better", score.combined) if score else (False, float("-inf"))

    return tuple(card(kind) for kind in sorted(kinds, key=merit, reverse=True))


def _script_data(explanation: Explanation, packed: PackedAttention) -> dict[str, object]:
    """What the script of the page needs."""
    attending = [layer for layer in explanation.layers if layer.attention.size]
    return {
        "grid": explanation.layout.grid,
        "cells": packed.grid,
        "prefix": text.prefix_names(explanation.layout),
        "maps": [
            {
                "description": printable(text.describe_map(MAP_TITLES[kind], values)),
                "values": [round(value, 4) for value in _unit_values(values)],
            }
            for kind, values in explanation.maps.items()
        ],
        "layers": [
            {
                "layer": layer.layer,
                "distance": [round(float(distance)) for distance in np.nan_to_num(layer.distance)],
                "heads": heads,
            }
            for layer, heads in zip(attending, packed.heads, strict=True)
        ],
        "steps": packed.steps,
        "attention": packed.cells,
        "rows": packed.rows,
        "similarity": packed.similarity,
    }


def _unit_values(values: Array) -> list[float]:
    return scale_to_unit(np.nan_to_num(values).ravel().astype(np.float64)).tolist()


def script_json(value: object) -> Markup:
    """JSON that is safe inside a script element: nothing in it can end the script."""
    script = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(script.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def model_section(model: ModelView) -> ModelSection:
    """The model itself, as the pages of explanations and runs show it."""
    tiles = filter_pictures(model.filters)
    ratios = [percent(float(ratio)) for ratio in model.explained_variance]
    positions = position_mosaic(model.positions) if model.positions.size else None
    return ModelSection(
        filters=tuple(zip(map(encode_png, tiles), ratios, strict=True)),
        filters_text=text.describe_filters(model.explained_variance) if tiles else "",
        positions=encode_png(positions.picture) if positions else "",
        positions_text=text.describe_positions(model.positions, positions.tiles, positions.cells) if positions else "",
        distances=distance_chart(model.distances, model.images),
    )


def omitted(section: ImageSection, model: ModelSection) -> list[str]:
    """The sections that the page leaves out because there is nothing to show."""
    contents = {
        "prediction": section.predictions,
        "maps": section.cards,
        "faithfulness test": section.verdict,
        "attention": section.layers,
        "logit lens": section.logit_lens,
        "feature colors": section.colors,
        "patch similarity": section.has_similarity,
        "filters": model.filters,
        "position embeddings": model.positions,
        "attention distance": model.distances,
        "walkthrough": section.explanation.steps,
    }
    return [name for name, content in contents.items() if not content]
