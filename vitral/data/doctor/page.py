"""The data doctor's report as one HTML file, with thumbnails of the images that the findings are about."""

from collections import Counter
from math import floor, log2, sqrt
from pathlib import Path
from typing import NamedTuple

from vitral import __version__
from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.core.storage import write_file_atomically
from vitral.data.doctor.diagnosis import IMAGE_SIZE, MAX_SQUEEZE, Diagnosis, summarize_resize
from vitral.data.doctor.finding import Example, Finding
from vitral.data.doctor.report import nonempty_splits, verdict
from vitral.data.samples import Item, Samples
from vitral.data.thumbnails import thumbnail_url
from vitral.html.charts import Axis, Chart, Dot, Line
from vitral.html.page import render

SIDE = 320.0  # of the chart, in SVG units
MAX_DOTS = 400


def size_chart(sizes: Counter[Size], image: Size) -> Chart:
    """A dot for each image size on logarithmic axes, its area by how many images have that size.

    The dashed box marks the sizes that fit into the model's input.
    """
    shown, summary = sizes.most_common(MAX_DOTS), summarize_resize(sizes, image)
    sides = [side for size, _ in shown for side in size] + list(image)
    low, high, most = floor(log2(min(sides))), floor(log2(max(sides))) + 1, shown[0][1]
    x, y = Axis(low, high, 1, 0, SIDE), Axis(low, high, 1, SIDE, 0)

    def label(power: float) -> str:
        return str(2 ** int(power))

    box = log2(max(image))
    grid = "".join(f"M{tick.position} 0V{SIDE}" for tick in x.ticks())
    caption = (
        f"The dashed box is the model's input size, {image}. {summary.enlarged:,} images are enlarged, "
        f"{summary.squeezed:,} squeezed by more than {MAX_SQUEEZE} times"
    )
    hidden = len(sizes) - len(shown)
    return Chart(
        alt=f"Width and height of the images, from {summary.smallest} to {summary.largest}, median {summary.median}",
        x_ticks=x.ticks(label),
        y_ticks=y.ticks(label),
        x_label="width, pixels",
        y_label="height, pixels",
        lines=(Line("grid", grid), Line("box", f"M0 {y.scale(box)}H{x.scale(box)}V{SIDE}")),
        dots=tuple(
            Dot(
                style="size",
                x=x.scale(log2(size.width)),
                y=y.scale(log2(size.height)),
                label=f"{size.width} wide, {size.height} high: {count:,}",
                radius=round(2.5 + 9.5 * sqrt(count / most) * (most > 1), 1),
            )
            for size, count in shown
        ),
        caption=f"{caption}; the {hidden:,} rarest sizes are not drawn." if hidden else f"{caption}.",
        width=SIDE,
        height=SIDE,
    )


TEMPLATE = Path(__file__).with_name("page.html")
MAX_EXAMPLES = 12  # of one finding
MAX_IMAGES = 4  # of one example
MAX_CLASSES = 60
MAX_BYTES = 2_000_000  # of thumbnails, so that the page stays below 3 MB


class ExampleImage(NamedTuple):
    """One file of an example; without a source where it cannot be shown."""

    name: str
    label: str
    split: str
    source: str


class ExampleView(NamedTuple):
    """An example on the page, and how many more files it has."""

    pictures: tuple[ExampleImage, ...]
    detail: str
    more: int


class Bar(NamedTuple):
    """A class in the table: its images by split, and the length of its bar in hundredths of the longest."""

    name: str
    counts: tuple[int, ...]
    share: float


def write_page(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page; whoever looks finds the whole file or the one before it."""
    write_file_atomically(path, render_page(diagnosis))


def render_page(diagnosis: Diagnosis) -> str:
    """The page as HTML."""
    samples = diagnosis.samples
    bars = _bars(samples)
    thumbnails = _Thumbnails(samples)
    return render(
        TEMPLATE,
        diagnosis=diagnosis,
        samples=samples,
        version=__version__,
        verdict=verdict(diagnosis),
        splits=nonempty_splits(samples),
        bars=bars[:MAX_CLASSES],
        more_classes=len(bars) - MAX_CLASSES,
        sizes=size_chart(diagnosis.sizes, IMAGE_SIZE) if diagnosis.sizes else None,
        findings=[(finding, thumbnails.shown(finding)) for finding in diagnosis.findings],
    )


def _bars(samples: Samples) -> list[Bar]:
    """Every class, the largest first."""
    counts = list(zip(*(samples.counts(split) for split in nonempty_splits(samples)), strict=True))
    most = max(map(sum, counts))
    bars = [Bar(name, row, 100 * sum(row) / most) for name, row in zip(samples.classes, counts, strict=True)]
    return sorted(bars, key=lambda bar: -bar.share)


class _Thumbnails:
    """Thumbnails, until there are enough of them."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.left = MAX_BYTES

    def shown(self, finding: Finding) -> list[ExampleView]:
        pictured = finding.kind != "corrupt"
        return [self._example(example, pictured) for example in finding.examples[:MAX_EXAMPLES]]

    def _example(self, example: Example, pictured: bool) -> ExampleView:
        items = example.items[:MAX_IMAGES]
        pictures = tuple(
            ExampleImage(
                item.name, self.samples.classes[item.label], item.split, self._source(item) if pictured else ""
            )
            for item in items
        )
        return ExampleView(pictures, example.detail, len(example.items) - len(items))

    def _source(self, item: Item) -> str:
        if self.left <= 0:
            return ""
        try:
            source = thumbnail_url(self.samples, item)
        except DataError:  # it was sound when it was examined: the page is not the place to tell
            return ""
        self.left -= len(source)
        return source
