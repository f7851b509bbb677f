"""The charts of the report: metrics by epoch, the confusion matrix, and the reliability diagram."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import isfinite, log10, sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from vitral.data.samples import SPLITS
from vitral.evaluation.accuracy import Accuracy, Calibration
from vitral.html.charts import HEIGHT, WIDTH, Axis, Bar, Chart, Dot, LegendEntry, Line, linear_axis, svg_path
from vitral.html.page import printable
from vitral.html.text import format_loss, format_points, percent, shorten
from vitral.training.metrics import read_metrics

# A line of metrics.jsonl: step, epoch, split and metrics; training steps also have the learning rate.
MetricLine = Mapping[str, Any]

NOT_METRICS = ("step", "epoch", "split")
ORDER = {"loss": 0, "accuracy": 1, "knn_accuracy": 1, "rate": 3}  # of the charts; 2 for other metrics
SMOOTHED = 50  # training steps, below which a curve is not smoothed
MAX_POINTS = 300  # of a line: more could not be distinguished
MAX_BANDS = 60  # with a tooltip each
MAX_DOTS = 80
LOG_RATIO = 8  # of the highest loss to the median, from which the axis is logarithmic: a spike would flatten the rest
SHARES = ("accuracy", "knn_accuracy")  # that are shown in percent
TITLES = {"rate": "learning rate", "knn_accuracy": "k-NN accuracy"}
BEST = {"loss": (min, "Lowest"), "accuracy": (max, "Highest"), "knn_accuracy": (max, "Highest")}

Format = Callable[[float], str]


class MetricPoint(NamedTuple):
    """A value after a step of the run."""

    step: int
    epoch: float
    value: float


def metric_records(folder: Path) -> list[MetricLine]:
    """The metrics of a run, as `metric_charts` takes them."""
    return [
        {"step": line.step, "epoch": line.epoch, "split": line.split, **line.values} for line in read_metrics(folder)
    ]


def metric_charts(lines: Sequence[MetricLine]) -> list[Chart]:
    """A chart for each metric: loss and accuracy first, the learning rate last."""
    names = dict.fromkeys(name for line in lines for name in line if name not in NOT_METRICS)
    points = {name: _points(lines, name) for name in sorted(names, key=lambda name: ORDER.get(name, 2))}
    return [_curve(name, found) for name, found in points.items() if any(found.values())]


def smooth(values: Sequence[float]) -> list[float]:
    """Means over a twenty-fifth of the values, centered, so that a curve is not late; shorter at the ends."""
    reach = len(values) // SMOOTHED
    sums = [*accumulate(values, initial=0.0)]
    spans = ((max(0, place - reach), min(len(values), place + reach + 1)) for place in range(len(values)))
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in spans]


def downsample(points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Few enough points to draw: the lowest and the highest of each part, in order, so that no outlier is lost."""
    if len(points) <= MAX_POINTS:
        return list(points)
    found = []
    for part in split_evenly(points, MAX_POINTS // 2):
        found += sorted({min(part, key=lambda point: point.value), max(part, key=lambda point: point.value)})
    return found


def split_evenly(points: Sequence[MetricPoint], most: int) -> Iterator[Sequence[MetricPoint]]:
    """The points in at most `most` parts of nearly the same length, none of them empty."""
    count = min(most, len(points))
    return (points[start:stop] for start, stop in pairwise(len(points) * k // max(1, count) for k in range(count + 1)))


def _points(lines: Sequence[MetricLine], name: str) -> dict[str, list[MetricPoint]]:
    """The finite values of a metric on each split."""
    found: dict[str, list[MetricPoint]] = {split: [] for split in SPLITS}
    for line in lines:
        if name in line and isfinite(line[name]):
            found[line["split"]].append(MetricPoint(line["step"], line["epoch"], line[name]))
    return found


def _curve(name: str, found: dict[str, list[MetricPoint]]) -> Chart:
    train = found["train"]
    is_lr = name == "rate"  # it is set, not measured: nothing to smooth
    text: Format = percent if name in SHARES else format_loss
    means = smooth([point.value for point in train])
    smoothed = [point._replace(value=mean) for point, mean in zip(train, means, strict=True)]
    shown = [*train, *found["val"], *found["test"]]
    values = [point.value for point in shown]
    x = linear_axis(0.0, max(point.epoch for point in shown), 0, WIDTH, 6, nice=False)
    is_log = name == "loss" and min(values) > 0 and max(values) > LOG_RATIO * median(values)
    low, high = (log10(min(values)), log10(max(values))) if is_log else (0.0 if is_lr else min(values), max(values))
    y = linear_axis(low, high, HEIGHT, 0, 6)

    def height(point: MetricPoint) -> float:
        return y.scale(log10(point.value) if is_log else point.value)

    def line(style: str, points: Sequence[MetricPoint]) -> Line:
        return Line(style, svg_path([(x.scale(point.epoch), height(point)) for point in points]))

    thinned = [*(part[0] for part in split_evenly(smoothed, MAX_POINTS)), *smoothed[-1:]]
    lines = [line("train", downsample(train))] if is_lr else [line("raw", downsample(train)), line("train", thinned)]
    lines += [line(split, found[split]) for split in ("val", "test")]
    dots = [
        Dot(split, x.scale(point.epoch), height(point), f"{split}, epoch {point.epoch:.4g}: {text(point.value)}")
        for split in ("val", "test")
        for *_, point in split_evenly(found[split], MAX_DOTS)  # the last value is always among them
    ]
    ranges = [
        f"{split} from {text(points[0].value)} to {text(points[-1].value)}"
        for split, points in (found | {"train": smoothed}).items()
        if points
    ]
    return Chart(
        title=TITLES.get(name, name.replace("_", " ")),
        alt=f"{name} by epoch: {', '.join(ranges)}",
        x_ticks=x.ticks(),
        y_ticks=y.ticks(_tick_format(name, is_log)),
        x_label="epoch",
        y_label="log scale" if is_log else "",
        lines=tuple(line for line in lines if line.path),
        bars=tuple(_bands(train, x, text)),
        dots=tuple(dots),
        legend=() if is_lr else tuple(LegendEntry(split, split) for split in SPLITS if found[split]),
        caption=_best(name, found, text),
    )


def _tick_format(name: str, is_log: bool) -> Format:
    if name in SHARES:
        return lambda value: f"{100 * value:g}%"
    return (lambda value: f"{10**value:.2g}") if is_log else "{:g}".format


def _bands(train: Sequence[MetricPoint], x: Axis, text: Format) -> Iterator[Bar]:
    """Vertical strips side by side, each with the mean of its training steps as a tooltip."""
    left = 0.0
    for part in split_evenly(train, MAX_BANDS):
        first, last, right = part[0].step, part[-1].step, x.scale(part[-1].epoch)
        mean = sum(point.value for point in part) / len(part)
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        label = f"train, epoch {part[-1].epoch:.4g}, {steps}: {text(mean)}"
        yield Bar("band", left, 0.0, round(right - left, 1), HEIGHT, label)
        left = right


def _best(name: str, found: dict[str, list[MetricPoint]], text: Format) -> str:
    """The best value on each held-out split; of the learning rate the highest."""
    if name == "rate":
        peak = max((point for points in found.values() for point in points), key=lambda point: point.value)
        return f"Highest at epoch {peak.epoch:.3g}: {text(peak.value)}."
    captions = []
    for split in ("val", "test") if name in BEST else ():
        if points := found[split]:
            choose, word = BEST[name]
            best = choose(points, key=lambda point: point.value)
            first = f"{word} on {split}" if len(points) > 1 else split.capitalize()
            last = f"; last {text(points[-1].value)}" if len(points) > 1 else ""
            captions.append(f"{first} at epoch {best.epoch:.4g}: {text(best.value)}{last}.")
    return " ".join(captions)


MAX_CLASSES = 30  # of a matrix
MAX_PAIRS = 15
NUMBERED = 16  # classes, up to which the cells have room for numbers
MAX_NAME = 14  # characters of a name beside the matrix


class Cell(NamedTuple):
    """Images of the class of a row that were predicted as the class of a column; empty cells are not drawn."""

    x: float
    y: float
    style: str  # right or wrong
    strength: float  # of the color, from 0 to 1
    images: int
    label: str


class Name(NamedTuple):
    """A class name beside the matrix, in full and shortened."""

    position: float
    short: str
    full: str


class Matrix(NamedTuple):
    """True classes as rows, predictions as columns, in squares of `side`."""

    side: float
    width: float
    names: tuple[Name, ...]
    cells: tuple[Cell, ...]
    numbered: bool


class Confused(NamedTuple):
    """Images of one class predicted as another, and their share of that class."""

    name: str
    predicted_as: str
    images: int
    share: float


def confusion_matrix(accuracy: Accuracy) -> Matrix | None:
    """The confusion matrix; None for too many classes to be readable."""
    count = len(accuracy.classes)
    if count > MAX_CLASSES:
        return None
    side = min(72.0, max(20.0, round(320 / count)))
    cells = []
    for pair in accuracy.confusion_counts:
        row, column = accuracy.classes[pair.label], accuracy.classes[pair.prediction]
        share = pair.images / row.images
        right = pair.label == pair.prediction
        verb = "correct" if right else f"predicted as {column.name}"
        label = f"{row.name}: {pair.images:,} of {row.images:,} {verb} ({percent(share)})"
        # The square root makes a few mistakes visible beside many correct predictions.
        strength = round(share if right else sqrt(share), 3)
        x, y, style = pair.prediction * side, pair.label * side, "right" if right else "wrong"
        cells.append(Cell(x, y, style, strength, pair.images, label))
    names = tuple(
        Name((place + 0.5) * side, shorten(printable(each.name), MAX_NAME), each.name)
        for place, each in enumerate(accuracy.classes)
    )
    return Matrix(side, count * side, names, tuple(cells), count <= NUMBERED)


def most_confused(accuracy: Accuracy) -> list[Confused]:
    """The pairs of a class and a wrong prediction, most images first."""
    classes = accuracy.classes
    wrong = [pair for pair in accuracy.confusion_counts if pair.label != pair.prediction]
    found = []
    for pair in sorted(wrong, key=lambda pair: -pair.images)[:MAX_PAIRS]:
        label, prediction = classes[pair.label], classes[pair.prediction]
        found.append(Confused(label.name, prediction.name, pair.images, pair.images / label.images))
    return found


def calibration_chart(calibration: Calibration, accuracy: float) -> Chart:
    """The reliability diagram: accuracy and its gap to the confidence, by bins of confidence."""
    x, y = linear_axis(0.0, 1.0, 0, WIDTH, 5), linear_axis(0.0, 1.0, HEIGHT, 0, 5)
    bars = []
    for each in calibration.bins:
        if each.accuracy is None or each.confidence is None:
            continue
        label = f"{each.images:,} predictions: confidence {percent(each.confidence)}, accuracy {percent(each.accuracy)}"
        left, width = x.scale(each.low) + 1, x.scale(each.high) - x.scale(each.low) - 2
        upper, lower = sorted((y.scale(each.accuracy), y.scale(each.confidence)))
        gap = "overconfident" if each.confidence > each.accuracy else "underconfident"
        bars.append(Bar("bin", left, lower, width, HEIGHT - lower, label))
        bars.append(Bar(gap, left, upper, width, round(lower - upper, 1), label))
    return Chart(
        title="calibration",
        alt=f"Calibration: expected calibration error {percent(calibration.ece)}",
        x_ticks=x.ticks(lambda value: f"{100 * value:g}%"),
        y_ticks=y.ticks(lambda value: f"{100 * value:g}%"),
        x_label="confidence",
        lines=(Line("even", f"M0 {HEIGHT:g}L{WIDTH:g} 0"),),
        bars=tuple(bars),
        legend=(
            LegendEntry("bin", "accuracy"),
            *(LegendEntry(gap, gap) for gap in ("overconfident", "underconfident")),
        ),
        caption=f"Expected calibration error {percent(calibration.ece)}, Brier score {calibration.brier:.3f}. "
        + _verdict(calibration.mean_confidence - accuracy),
    )


def _verdict(excess: float) -> str:
    """Whether the model is over- or underconfident, in a sentence."""
    if abs(excess) < 0.02:
        return "Confidence and accuracy agree on average."
    manner = "overconfident" if excess > 0 else "underconfident"
    return f"The model is {manner} by {format_points(abs(excess))} on average."
