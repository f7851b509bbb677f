"""What is seen, as a page: one file that needs no network."""

import logging
from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitral import __version__
from vitral.data.pages import printable, render, write_whole
from vitral.explain.explanation import Explanation
from vitral.explain.pictures import COLD, WARM, icon
from vitral.explain.view import Figures, View, figures_of, script_json, view_of

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
        colours=script_json({"warm": WARM, "cold": COLD}),
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
        "features in colour": view.colours,
        "what looks alike": view.alike,
        "the first filters": figures.filters,
        "positions": figures.positions,
        "attention distance": figures.distances,
        "the walk-through": view.steps,
    }
    return [name for name, content in there.items() if not content]
