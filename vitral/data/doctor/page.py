"""The diagnosis as a page: one file that needs no network, with the pictures that the findings are about.

The sizes of the pictures, drawn: places on a page for a template to fill in.
"""

from collections import Counter
from math import floor, log2, sqrt
from pathlib import Path
from typing import NamedTuple

from vitral import __version__
from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.doctor.diagnosis import IMAGE, SQUEEZED, Diagnosis, resizing
from vitral.data.doctor.finding import Example, Finding
from vitral.data.doctor.report import splits_of, verdict
from vitral.data.samples import Item, Samples
from vitral.data.thumbnails import thumbnail
from vitral.html.page import render, write_whole

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


TEMPLATE = Path(__file__).with_name("page.html")
MOST_EXAMPLES = 12  # of one finding
MOST_PICTURES = 4  # of one example
MOST_CLASSES = 60
MOST_BYTES = 2_000_000  # of thumbnails, so that the page stays below 3 MB


class Picture(NamedTuple):
    """One file of an example; without a source where it cannot be shown."""

    name: str
    label: str
    split: str
    source: str


class Shown(NamedTuple):
    """An example on the page, and how many more files it has."""

    pictures: tuple[Picture, ...]
    detail: str
    more: int


class Bar(NamedTuple):
    """A class in the table: its images by split, and the length of its bar in hundredths of the longest."""

    name: str
    counts: tuple[int, ...]
    share: float


def write_page(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page; whoever looks finds the whole file or the one before it."""
    write_whole(path, page(diagnosis))


def page(diagnosis: Diagnosis) -> str:
    """The page as HTML."""
    samples = diagnosis.samples
    bars = _bars(samples)
    album = _Album(samples)
    return render(
        TEMPLATE,
        diagnosis=diagnosis,
        samples=samples,
        version=__version__,
        verdict=verdict(diagnosis),
        splits=splits_of(samples),
        bars=bars[:MOST_CLASSES],
        more_classes=len(bars) - MOST_CLASSES,
        image=IMAGE,
        squeezed=SQUEEZED,
        resizing=resizing(diagnosis.sizes) if diagnosis.sizes else None,
        drawing=draw_sizes(diagnosis.sizes, IMAGE) if diagnosis.sizes else None,
        findings=[(finding, album.shown(finding)) for finding in diagnosis.findings],
    )


def _bars(samples: Samples) -> list[Bar]:
    """Every class, the largest first."""
    counts = list(zip(*(samples.counts(split) for split in splits_of(samples)), strict=True))
    most = max(map(sum, counts))
    bars = [Bar(name, row, 100 * sum(row) / most) for name, row in zip(samples.classes, counts, strict=True)]
    return sorted(bars, key=lambda bar: -bar.share)


class _Album:
    """Thumbnails, until there are enough of them."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.left = MOST_BYTES

    def shown(self, finding: Finding) -> list[Shown]:
        pictured = finding.kind != "corrupt"
        return [self._example(example, pictured) for example in finding.examples[:MOST_EXAMPLES]]

    def _example(self, example: Example, pictured: bool) -> Shown:
        items = example.items[:MOST_PICTURES]
        pictures = tuple(
            Picture(item.name, self.samples.classes[item.label], item.split, self._source(item) if pictured else "")
            for item in items
        )
        return Shown(pictures, example.detail, len(example.items) - len(items))

    def _source(self, item: Item) -> str:
        if self.left <= 0:
            return ""
        try:
            source = thumbnail(self.samples, item)
        except DataError:  # it was sound when it was examined: the page is not the place to tell
            return ""
        self.left -= len(source)
        return source
