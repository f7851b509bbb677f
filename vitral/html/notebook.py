"""What a notebook shows of an object: a compact card of lines, tables, plots and charts.

Styles are attributes, since some notebooks remove style sheets; all text is escaped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vitral.html.charts import Chart
from vitral.html.page import render


class Table(NamedTuple):
    """Rows of cells; the first row is a header, or else the first cell of each row is its name."""

    rows: Sequence[Sequence[str]]
    has_header: bool = False


class Plot(NamedTuple):
    """Lines of text that need a fixed width."""

    lines: Sequence[str]


class Charts(NamedTuple):
    """Charts side by side."""

    charts: Sequence[Chart]


class Link(NamedTuple):
    """A line that links to a file."""

    text: str
    path: Path


Block = str | Table | Plot | Charts | Link
TEMPLATE = Path(__file__).with_name("notebook.html")


def notebook_card(title: str, sections: Mapping[str, Sequence[Block]]) -> str:
    """The card as HTML: a title, and blocks under headings, which may be empty."""
    named = {
        heading: [(type(block).__name__, block) for block in blocks if block] for heading, blocks in sections.items()
    }
    return render(TEMPLATE, title=title, sections=named)
