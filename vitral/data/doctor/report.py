"""The diagnosis as text, which fits on a screen for most datasets, and as one HTML file with thumbnails."""

from collections import Counter
from collections.abc import Callable, Iterator
from math import ceil, floor, log2, sqrt
from pathlib import Path
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

from vitral import __version__
from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.core.storage import write_file_atomically
from vitral.data.decoding.decode import decode_image
from vitral.data.doctor.checks import Example, Finding, is_labeled
from vitral.data.doctor.diagnosis import (
    MAX_SQUEEZE,
    Diagnosis,
    ResizeSummary,
    TrainingForecast,
    images_per_class,
    next_command,
    summarize_resize,
)
from vitral.data.samples import SPLITS, Item, Samples, Split
from vitral.data.thumbnails import thumbnail_url
from vitral.html.charts import Axis, Chart, Dot, Line
from vitral.html.page import plural, printable, render
from vitral.html.text import align_columns, format_count, shorten

COLUMNS = 100
TEXT_CLASSES = 12
TEXT_EXAMPLES = {"error": 8, "warning": 2, "note": 1}
MAX_NAMES = 3  # of one example
MARGIN = 9  # columns for the severity
NO_SIZE = Size(1, 1)  # where only the sizes of the files matter
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


def format_report(diagnosis: Diagnosis) -> str:
    """The whole report, in lines of at most 100 columns unless a name is longer."""
    samples = diagnosis.samples
    classes = _classes(samples) if is_labeled(samples) and samples.items else ""
    headline = f"{printable(samples.where)}: {_summary(diagnosis)}"
    parts = [headline, classes, _files(diagnosis), _training(diagnosis)]
    parts.append("\n".join(line for finding in diagnosis.findings for line in _finding(finding)))
    return "\n\n".join([*filter(None, parts), verdict(diagnosis)])


def print_report(text: str, console: Console) -> None:
    """Print a report, with colored severities if the console has color."""
    for line in text.splitlines():
        shown = Text(line)
        word = line.partition(" ")[0]
        shown.stylize(STYLES.get(word, ""), 0, len(word))
        console.print(shown, soft_wrap=True)


def verdict(diagnosis: Diagnosis) -> str:
    """The last line: train, or fix the errors first."""
    command = printable(next_command(diagnosis))
    errors, warnings = diagnosis.count("error"), diagnosis.count("warning")
    if errors:
        more = f" and {plural(warnings, 'warning')}" if warnings else ""
        return f"{plural(errors, 'error')}{more}: fix the errors, then run: {command}"
    found = f"{plural(warnings, 'warning')}, no errors" if warnings else "no errors, no warnings"
    return f"{found}: train with: {command}"


def format_example(example: Example) -> str:
    """`a.jpg = b.jpg (looks the same)`: the files of an example and its detail."""
    names = [printable(item.name) for item in example.items]
    shown = " = ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    detail = printable(example.detail)
    return f"{shown} ({detail})" if shown and detail else shown or detail


def _summary(diagnosis: Diagnosis) -> str:
    """`396 images of 2 classes (243 train, 153 val)`."""
    samples = diagnosis.samples
    splits = ", ".join(f"{len(samples.of(split)):,} {split}" for split in _nonempty_splits(samples))
    labels = f"of {plural(len(samples.classes), 'class', 'classes')}" if is_labeled(samples) else "without labels"
    some = f"; {diagnosis.examined:,} examined" if diagnosis.examined < len(samples.items) else ""
    return f"{plural(len(samples.items), 'image')} {labels}{f' ({splits})' if splits else ''}{some}"


def _nonempty_splits(samples: Samples) -> list[Split]:
    return [split for split in SPLITS if samples.of(split)]


def _class_counts(samples: Samples) -> list[tuple[str, tuple[int, ...]]]:
    """Every class and its images in each split that has any."""
    counts = zip(*(samples.counts(split) for split in _nonempty_splits(samples)), strict=True)
    return list(zip(samples.classes, counts, strict=True))


def _classes(samples: Samples) -> str:
    counts, more = _class_counts(samples), []
    if len(counts) > TEXT_CLASSES:
        more = [f"... and {len(counts) - TEXT_CLASSES:,} more; these are the largest and the smallest"]
        counts = sorted(counts, key=lambda row: -sum(row[1]))
        counts = [*counts[: TEXT_CLASSES // 2], *counts[-TEXT_CLASSES // 2 :]]
    rows = [(shorten(printable(name), COLUMNS // 2), *(f"{count:,}" for count in row)) for name, row in counts]
    return "\n".join([*align_columns([("class", *_nonempty_splits(samples)), *rows], right=range(1, 4)), *more])


def _files(diagnosis: Diagnosis) -> str:
    """The formats and sizes of the files."""
    if not diagnosis.sizes:
        return ""
    found = summarize_resize(diagnosis.sizes, NO_SIZE)
    same = found.smallest == found.largest
    span = str(found.median) if same else f"{found.smallest} to {found.largest}, median {found.median}"
    return (
        f"{'files':<{MARGIN}}{_tally(diagnosis.formats)}; {_tally(diagnosis.modes)}\n"
        f"{'sizes':<{MARGIN}}{span} (height x width)"
    )


def _training(diagnosis: Diagnosis) -> str:
    """The training that `vitral train` would run, in rows of a name and a text."""
    return "\n".join(
        line for name, text in training_rows(diagnosis) for line in _wrapped(text, f"{name:<{MARGIN}}", " " * MARGIN)
    )


def training_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The training that `vitral train` would run: recipe, model, length, and what is done to the images."""
    training = diagnosis.training
    if training is None:
        return []
    image, patch = training.image_size, training.patch
    chosen = training.reason or f"recipe {training.recipe}"
    start = f", from {training.weights}" if training.weights else ", from random weights"
    tokens = f"{image} pixels, {plural(training.patches, 'patch', 'patches')} of {patch}"
    epochs = f"{training.epochs:.4g} {'epoch' if training.epochs == 1 else 'epochs'}"
    rows = [
        ("training", f"{chosen}; task {training.task}"),
        ("model", f"{training.model}, {format_count(training.parameters)} parameters{start}"),
        ("images", tokens),
        ("length", f"{epochs}, {plural(training.steps, 'step')}, batch size {training.batch_size:,}"),
    ]
    if is_labeled(diagnosis.samples):
        found = images_per_class(diagnosis.samples)
        span = f" ({found.smallest:,} to {found.largest:,})" if found.smallest < found.largest else ""
        rows.append(("classes", f"about {plural(found.median, 'training image')} per class{span}"))
    if diagnosis.sizes:
        rows.append(("resize", _resize(summarize_resize(diagnosis.sizes, image), training)))
    return rows


def _resize(found: ResizeSummary, training: TrainingForecast) -> str:
    ratio = found.reduction
    scale = f"{1 / ratio:.1f} times larger" if ratio < 1 else f"{ratio:.1f} times smaller"
    scale = "the same size" if 0.95 < ratio < 1.05 else scale
    wide = f"{found.squeezed:,} squeezed by more than {MAX_SQUEEZE:g} times"
    if not training.squeezes:
        wide = f"{found.squeezed:,} cropped because they are more than {MAX_SQUEEZE:g} times as long as wide"
    return f"to {training.image_size}: {scale} at the median; {found.enlarged:,} upscaled, {wide}"


def _tally(counted: Counter[str]) -> str:
    """`390 JPEG, 6 PNG`, or `JPEG` if there is nothing else."""
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{count:,} {name}" for name, count in counted.most_common())


def _finding(finding: Finding) -> Iterator[str]:
    indent = " " * MARGIN
    yield from _wrapped(finding.title, f"{finding.severity:<{MARGIN}}", indent)
    if finding.kind != "missing":  # the title has the names
        most = TEXT_EXAMPLES[finding.severity]
        examples = [format_example(example) for example in finding.examples[:most]]
        left = len(finding.examples) - most
        if left > 0:
            examples[-1] += f" and {left:,} more: --json and --html show all"
        yield from (f"{indent}  {example}" for example in examples)
    if finding.hint:
        yield from _wrapped(finding.hint, f"{indent}> ", f"{indent}  ")


def _wrapped(text: str, first: str, indent: str) -> list[str]:
    """The text in lines of at most COLUMNS, unless a name is longer."""
    wrapper = TextWrapper(COLUMNS, first, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(printable(text))


TEMPLATE = Path(__file__).with_name("page.html")
SIDE = 320.0  # of the chart, in SVG units
MAX_DOTS = 400
MAX_EXAMPLES = 12  # of one finding
MAX_IMAGES = 4  # of one example
MAX_CLASSES = 60
MAX_BYTES = 2_000_000  # of thumbnails, which keeps the page below 3 MB


def write_page(path: Path, diagnosis: Diagnosis) -> None:
    """Write the page atomically."""
    write_file_atomically(path, render_page(diagnosis))


def render_page(diagnosis: Diagnosis) -> str:
    """The page as HTML."""
    samples = diagnosis.samples
    return render(
        TEMPLATE,
        diagnosis=diagnosis,
        samples=samples,
        version=__version__,
        verdict=verdict(diagnosis),
        summary=_summary(diagnosis),
        training=training_rows(diagnosis),
        splits=_nonempty_splits(samples),
        classes=sorted(_class_counts(samples), key=lambda row: -sum(row[1])) if is_labeled(samples) else [],
        max_classes=MAX_CLASSES,
        sizes=size_chart(diagnosis.sizes, diagnosis.training.image_size)
        if diagnosis.sizes and diagnosis.training
        else None,
        max_examples=MAX_EXAMPLES,
        max_images=MAX_IMAGES,
        thumbnail=_thumbnails(diagnosis),
    )


def _thumbnails(diagnosis: Diagnosis) -> Callable[[Item], str]:
    """A function that returns the data URL of an image, or an empty one after a total of MAX_BYTES."""
    used = 0
    decode = diagnosis.isolation.build() if diagnosis.isolation else decode_image

    def thumbnail(item: Item) -> str:
        nonlocal used
        if used >= MAX_BYTES:
            return ""
        try:
            source = thumbnail_url(diagnosis.samples, item, decoding=diagnosis.decoding, decode=decode)
        except DataError:  # the file has changed since it was examined
            return ""
        used += len(source)
        return source

    return thumbnail


def size_chart(sizes: Counter[Size], image: Size) -> Chart:
    """A dot for each image size on logarithmic axes; the area of a dot shows the number of images of that size.

    The dashed box contains the sizes that are upscaled to the input size `image`.
    """
    shown, summary = sizes.most_common(MAX_DOTS), summarize_resize(sizes, image)
    sides = [side for size, _ in shown for side in size] + list(image)
    box = log2(max(image))
    low = min(floor(log2(min(sides))), ceil(box) - 1)  # so that the box is not empty
    high, most = floor(log2(max(sides))) + 1, shown[0][1]
    x, y = Axis(low, high, 1, 0, SIDE), Axis(low, high, 1, SIDE, 0)

    def label(power: float) -> str:
        return str(2 ** int(power))

    grid = "".join(f"M{tick.position} 0V{SIDE}" for tick in x.ticks())
    caption = (
        f"The dashed box is the input size of the model, {image}: "
        f"{plural(summary.enlarged, 'image is', 'images are')} upscaled"
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
