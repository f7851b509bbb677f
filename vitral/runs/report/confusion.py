"""The confusion matrix, the most confused pairs of classes, and the reliability diagram."""

from math import sqrt
from typing import NamedTuple

from vitral.evaluation.accuracy import Accuracy
from vitral.evaluation.calibration import Calibration
from vitral.html.charts import HEIGHT, WIDTH, Bar, Chart, LegendEntry, Line, linear_axis
from vitral.html.page import printable
from vitral.html.text import format_points, percent, shorten

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
