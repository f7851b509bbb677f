"""The charts of the report: metrics by epoch, the confusion matrix, and the reliability diagram."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any, NamedTuple

from vitral.data.samples import SPLITS
from vitral.evaluation.accuracy import Accuracy, Calibration
from vitral.html.charts import HEIGHT, WIDTH, Axis, Bar, Chart, Dot, LegendEntry, Line, linear_axis, svg_path
from vitral.html.page import printable
from vitral.html.text import format_loss, format_points, percent, shorten

# A line of metrics.jsonl: step, epoch, split and metrics; training steps also have the learning rate.
MetricLine = Mapping[str, Any]

NOT_MEASURED = ("step", "epoch", "split")
MAX_POINTS = 300  # of a line: more could not be told apart
MAX_BANDS = 60  # that tell their numbers under the pointer
MAX_DOTS = 80
BEST = {"loss": (min, "Lowest"), "accuracy": (max, "Highest")}


class MetricPoint(NamedTuple):
    """A value at a moment of the run."""

    step: int
    epoch: float
    value: float


def metric_charts(lines: Sequence[MetricLine]) -> list[Chart]:
    """A chart for each thing measured: the loss first, then accuracy and whatever else, and the rate last."""
    names = dict.fromkeys(name for line in lines for name in line if name not in NOT_MEASURED)
    first = [name for name in ("loss", "accuracy") if name in names]
    last = [name for name in ("rate",) if name in names]
    others = [name for name in names if name not in (*first, *last)]
    return [_curve(name, lines) for name in (*first, *others, *last) if any(_spots(lines, name).values())]


def smooth(values: Sequence[float]) -> list[float]:
    """Means over a twenty-fifth of the values, centered, so that a curve is not late; shorter at the ends."""
    reach = len(values) // 50
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    spans = ((max(0, place - reach), min(len(values), place + reach + 1)) for place in range(len(values)))
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in spans]


def downsample(spots: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Few enough spots to draw: of each stretch the lowest and the highest, in turn, so that no outlier is lost."""
    if len(spots) <= MAX_POINTS:
        return list(spots)
    found = []
    for stretch in split_evenly(spots, MAX_POINTS // 2):
        ends = {min(stretch, key=lambda spot: spot.value), max(stretch, key=lambda spot: spot.value)}
        found += sorted(ends)
    return found


def split_evenly(spots: Sequence[MetricPoint], most: int) -> Iterator[Sequence[MetricPoint]]:
    """The spots in at most so many stretches of nearly the same length."""
    count = min(most, len(spots))
    ends = [len(spots) * number // count for number in range(count + 1)]
    return (spots[start:stop] for start, stop in pairwise(ends))


def _spots(lines: Sequence[MetricLine], name: str) -> dict[str, list[MetricPoint]]:
    """What was measured on each split; what is infinite has no place on a page."""
    return {
        split: [
            MetricPoint(line["step"], line["epoch"], line[name])
            for line in lines
            if line["split"] == split and name in line and isfinite(line[name])
        ]
        for split in SPLITS
    }


def _curve(name: str, lines: Sequence[MetricLine]) -> Chart:
    found = _spots(lines, name)
    train = found["train"]
    even = name == "rate"  # it is set, not measured: nothing to smooth
    smoothed = [
        spot._replace(value=value) for spot, value in zip(train, smooth([spot.value for spot in train]), strict=True)
    ]
    shown = [*(train if even else smoothed), *found["val"], *found["test"]]
    values = [spot.value for spot in shown]
    x = linear_axis(0.0, max(spot.epoch for spot in shown), 0, WIDTH, 6, nice=False)
    y = linear_axis(0.0 if even else min(values), max(values), HEIGHT, 0, 6)
    words = _words(name)

    def point(spot: MetricPoint) -> tuple[float, float]:
        return x.scale(spot.epoch), y.scale(spot.value)

    lines_drawn = [] if even else [Line("raw", svg_path([point(spot) for spot in downsample(train)]))]
    lines_drawn.append(
        Line("train", svg_path([point(spot) for spot in (downsample(train) if even else _thin(smoothed))]))
    )
    lines_drawn += [Line(split, svg_path([point(spot) for spot in found[split]])) for split in ("val", "test")]
    dots = tuple(
        Dot(split, *point(spot), f"{split}, epoch {spot.epoch:g}: {words(spot.value)}")
        for split in ("val", "test")
        for spot in _some(found[split])
    )
    legend = [] if even else [LegendEntry(split, split) for split in SPLITS if found[split]]
    return Chart(
        title="learning rate" if even else name,
        alt=_told(name, {split: smoothed if split == "train" else found[split] for split in SPLITS}, words),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(lambda value: _tick(name, value)),
        x_label="epoch",
        lines=tuple(line for line in lines_drawn if line.path),
        bars=tuple(_bands(train, x, words)),
        dots=dots,
        legend=tuple(legend),
        caption=_best(name, found, words),
    )


def _bands(train: Sequence[MetricPoint], x: Axis, words: Callable[[float], str]) -> Iterator[Bar]:
    """Upright strips side by side, each of which tells the mean of the training steps in it."""
    left = 0.0
    for stretch in split_evenly(train, MAX_BANDS) if train else ():
        right = x.scale(stretch[-1].epoch)
        mean = sum(spot.value for spot in stretch) / len(stretch)
        steps = (
            f"step {stretch[0].step:,}" if len(stretch) == 1 else f"steps {stretch[0].step:,} to {stretch[-1].step:,}"
        )
        label = f"train, epoch {stretch[-1].epoch:g}, {steps}: {words(mean)}"
        yield Bar("band", left, 0.0, round(right - left, 1), HEIGHT, label)
        left = right


def _thin(spots: Sequence[MetricPoint]) -> list[MetricPoint]:
    return [*(stretch[0] for stretch in split_evenly(spots, MAX_POINTS)), spots[-1]] if spots else []


def _some(spots: Sequence[MetricPoint]) -> list[MetricPoint]:
    """The last of each stretch: what a run ended with is always among them."""
    return [stretch[-1] for stretch in split_evenly(spots, MAX_DOTS)] if spots else []


def _told(name: str, found: dict[str, list[MetricPoint]], words: Callable[[float], str]) -> str:
    parts = [
        f"{split} from {words(spots[0].value)} to {words(spots[-1].value)}" for split, spots in found.items() if spots
    ]
    return f"{name} by epoch: {', '.join(parts)}"


def _best(name: str, found: dict[str, list[MetricPoint]], words: Callable[[float], str]) -> str:
    """Where the curves of other splits were best; of the rate, where it was highest."""
    if name == "rate":
        peak = max((spot for spots in found.values() for spot in spots), key=lambda spot: spot.value)
        return f"Highest at epoch {peak.epoch:g}: {words(peak.value)}."
    if name not in BEST:
        return ""
    choose, word = BEST[name]
    best = {split: choose(found[split], key=lambda spot: spot.value) for split in ("val", "test") if found[split]}
    return " ".join(
        f"{word} on {split} at epoch {spot.epoch:g}: {words(spot.value)}; last {words(found[split][-1].value)}."
        for split, spot in best.items()
    )


def _words(name: str) -> Callable[[float], str]:
    return percent if name == "accuracy" else format_loss


def _tick(name: str, value: float) -> str:
    return f"{100 * value:g} %" if name == "accuracy" else f"{value:g}"


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
    taken_for: str
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
        cells.append(
            Cell(pair.prediction * side, pair.label * side, "right" if right else "wrong", strength, pair.images, label)
        )
    names = tuple(
        Name((place + 0.5) * side, shorten(printable(each.name), MAX_NAME), each.name)
        for place, each in enumerate(accuracy.classes)
    )
    return Matrix(side, count * side, names, tuple(cells), count <= NUMBERED)


def most_confused(accuracy: Accuracy) -> list[Confused]:
    """The pairs of a class and a wrong prediction, most images first."""
    wrong = sorted(
        (pair for pair in accuracy.confusion_counts if pair.label != pair.prediction), key=lambda pair: -pair.images
    )
    return [
        Confused(
            accuracy.classes[pair.label].name,
            accuracy.classes[pair.prediction].name,
            pair.images,
            pair.images / accuracy.classes[pair.label].images,
        )
        for pair in wrong[:MAX_PAIRS]
    ]


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
        x_ticks=x.ticks(lambda value: f"{100 * value:g} %"),
        y_ticks=y.ticks(lambda value: f"{100 * value:g} %"),
        x_label="confidence",
        lines=(Line("even", f"M0 {HEIGHT:g}L{WIDTH:g} 0"),),
        bars=tuple(bars),
        legend=(
            LegendEntry("bin", "accuracy"),
            LegendEntry("overconfident", "overconfident"),
            LegendEntry("underconfident", "underconfident"),
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
