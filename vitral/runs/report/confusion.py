"""Which classes are taken for which: a matrix while that can be read, and the pairs that are confused most.

The calibration diagram: how often answers are right, by how sure they are.
"""

from math import sqrt
from typing import NamedTuple

from vitral.evaluation.accuracy import Accuracy
from vitral.evaluation.calibration import Calibration
from vitral.html.charts import HEIGHT, WIDTH, Bar, Chart, Line, Tick, exact_axis
from vitral.html.page import printable
from vitral.html.text import brief, percent, points

MOST_CLASSES = 30  # of a matrix
MOST_PAIRS = 15
NUMBERED = 16  # up to so many classes the cells have room for numbers
LETTERS = 14  # of a name beside the matrix


class Cell(NamedTuple):
    """Images of the class of a row that were given the answer of a column; those of no images are not drawn."""

    x: float
    y: float
    style: str  # right or wrong
    strength: float  # of the color, from 0 to 1
    images: int
    label: str


class Name(NamedTuple):
    """A class beside the matrix, in full and as far as there is room."""

    place: float
    short: str
    full: str


class Matrix(NamedTuple):
    """Classes downwards, answers to the right, in squares of a side."""

    side: float
    width: float
    names: tuple[Name, ...]
    cells: tuple[Cell, ...]
    numbered: bool


class Confused(NamedTuple):
    """Images of one class taken for another, and their share of that class."""

    name: str
    taken_for: str
    images: int
    share: float


def draw_matrix(accuracy: Accuracy) -> Matrix | None:
    """The confusion matrix; none where it has too many classes to be read."""
    count = len(accuracy.classes)
    if count > MOST_CLASSES:
        return None
    side = min(72.0, max(20.0, round(320 / count)))
    cells = []
    for pair in accuracy.pairs:
        row, column = accuracy.classes[pair.label], accuracy.classes[pair.answer]
        share = pair.images / row.images
        right = pair.label == pair.answer
        verb = "named rightly" if right else f"taken for {column.name}"
        label = f"{row.name}: {pair.images:,} of {row.images:,} {verb} ({percent(share)})"
        # The root makes a few mistakes visible beside many right answers.
        strength = round(share if right else sqrt(share), 3)
        cells.append(
            Cell(pair.answer * side, pair.label * side, "right" if right else "wrong", strength, pair.images, label)
        )
    names = tuple(
        Name((place + 0.5) * side, brief(printable(each.name), LETTERS), each.name)
        for place, each in enumerate(accuracy.classes)
    )
    return Matrix(side, count * side, names, tuple(cells), count <= NUMBERED)


def most_confused(accuracy: Accuracy) -> list[Confused]:
    """The pairs of a class and a wrong answer that have most images, most first."""
    wrong = sorted((pair for pair in accuracy.pairs if pair.label != pair.answer), key=lambda pair: -pair.images)
    return [
        Confused(
            accuracy.classes[pair.label].name,
            accuracy.classes[pair.answer].name,
            pair.images,
            pair.images / accuracy.classes[pair.label].images,
        )
        for pair in wrong[:MOST_PAIRS]
    ]


def draw_calibration(calibration: Calibration, accuracy: float) -> Chart:
    """A bar for each bin, and the gap between what was said and what was right; on the dashed line there is none."""
    across, upward = exact_axis(0.0, 1.0, WIDTH, 5), exact_axis(0.0, 1.0, HEIGHT, 5)
    bars = []
    for each in calibration.bins:
        if each.accuracy is None or each.confidence is None:
            continue
        label = f"{each.images:,} answers said {percent(each.confidence)}, {percent(each.accuracy)} are right"
        left, width = across.place(each.low) + 1, across.place(each.high) - across.place(each.low) - 2
        top, said = upward.place(each.accuracy), upward.place(each.confidence)
        gap = "sure" if said > top else "modest"
        bars.append(Bar("bin", left, HEIGHT - min(top, said), width, min(top, said), label))
        bars.append(Bar(gap, left, HEIGHT - max(top, said), width, round(abs(top - said), 1), label))
    return Chart(
        title="calibration",
        alt=f"Calibration: expected calibration error {percent(calibration.error)}",
        across=tuple(Tick(across.place(value), f"{100 * value:g} %") for value in across.ticks()),
        upward=tuple(Tick(HEIGHT - upward.place(value), f"{100 * value:g} %") for value in upward.ticks()),
        across_name="how sure the model says it is",
        lines=(Line("even", f"M0 {HEIGHT:g}L{WIDTH:g} 0"),),
        bars=tuple(bars),
        dots=(),
        legend=(("bin", "right"), ("sure", "too sure"), ("modest", "too modest")),
        caption=f"Expected calibration error {percent(calibration.error)}, Brier score {calibration.brier:.3f}. "
        + _verdict(calibration.confidence - accuracy),
    )


def _verdict(excess: float) -> str:
    """In a sentence, whether the model is too sure of itself."""
    if abs(excess) < 0.02:
        return "On the whole it is as sure as it is right."
    manner = "surer of itself than it should be" if excess > 0 else "right more often than it dares to say"
    return f"It is {manner}, by {points(abs(excess))} on average."
