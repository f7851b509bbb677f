"""The diagnosis as a page: one file that needs no network, with the pictures that the findings are about."""

from pathlib import Path
from typing import NamedTuple

from vitral import __version__
from vitral.data.doctor.diagnosis import IMAGE, SQUEEZED, Diagnosis, resizing
from vitral.data.doctor.drawing import draw_sizes
from vitral.data.doctor.finding import Example, Finding
from vitral.data.doctor.report import splits_of, verdict
from vitral.data.pages import render, write_whole
from vitral.data.samples import Item, Samples
from vitral.data.thumbnail import thumbnail
from vitral.errors import DataError

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
