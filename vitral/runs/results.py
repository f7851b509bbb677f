"""What an evaluation found, as text: a table for each judge.

A curve in plain text, for terminals and logs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from vitral.evaluation.accuracy import Accuracy, AccuracyResult, Interval
from vitral.evaluation.evaluators import Evaluation
from vitral.evaluation.fewshot import FewShotResult, Score
from vitral.evaluation.knn import FOLDS, KnnResult
from vitral.evaluation.linear_probe import LinearResult
from vitral.evaluation.resolution import ResolutionResult, SizeResult
from vitral.evaluation.token_merging import TokenMergingResult
from vitral.html.charts import linear_axis
from vitral.html.page import printable
from vitral.html.text import MISSING, format_loss, format_points, percent, shorten

WIDTH, HEIGHT = 56, 9  # letters and lines between the axes


class PlotPoint(NamedTuple):
    """A point of a curve, and the letters that mark it."""

    x: float
    y: float
    mark: str


def draw_plot(spots: Sequence[PlotPoint], across: str, upward: Callable[[float], str]) -> list[str]:
    """The spots between their axes: `upward` writes the numbers at the left, `across` names those below.

    Where marks would lie on each other, the earlier spot's stays.
    """
    rightward = linear_axis(min(spot.x for spot in spots), max(spot.x for spot in spots), 0, WIDTH - 1, 6)
    height = linear_axis(min(spot.y for spot in spots), max(spot.y for spot in spots), HEIGHT - 1, 0, 4)
    paper = [[" "] * (WIDTH + 4) for _ in range(HEIGHT)]
    for spot in spots:
        line, start = paper[round(height.scale(spot.y))], round(rightward.scale(spot.x))
        place = slice(start, start + len(spot.mark))
        if not "".join(line[place]).strip():
            line[place] = spot.mark
    numbers = {round(height.scale(value)): upward(value) for value in height.values()}
    margin = max(map(len, numbers.values()))
    lines = [f"{numbers.get(row, ''):>{margin}} |{''.join(letters)}".rstrip() for row, letters in enumerate(paper)]
    below = [" "] * (WIDTH + 8)
    for value in rightward.values():
        text = f"{value:g}"
        start = round(rightward.scale(value))
        below[start : start + len(text)] = text
    empty = " " * (margin + 2)
    return [*lines, f"{' ' * margin} +{'-' * WIDTH}", f"{empty}{''.join(below).rstrip()}  {across}"]


MAX_CLASSES = 12
NAME = 24  # columns that the name of a class may take
INDENT = "  "


def format_evaluation(evaluation: Evaluation) -> str:
    """The whole evaluation; its headings are the lines that are not indented."""
    count = f"{evaluation.images:,} {evaluation.split} images of {evaluation.classes:,} classes"
    lines = [f"{printable(evaluation.model)} on {printable(evaluation.data)}: {count}"]
    for found in evaluation.results:
        lines += ["", found.kind, *(f"{INDENT}{line}".rstrip() for line in format_result(found))]
    return "\n".join(lines)


def print_evaluation(text: str, console: Console) -> None:
    """Print it, with its headings in bold where the console can."""
    for line in text.splitlines():
        console.print(Text(line, style="" if line.startswith(INDENT) else "bold"), soft_wrap=True)


@singledispatch
def format_result(found: object) -> list[str]:
    """The lines of one judge."""
    raise NotImplementedError(type(found).__name__)


@format_result.register
def _(found: AccuracyResult) -> list[str]:
    accuracy, calibration = found.accuracy, found.calibration
    facts = [
        ("top-1", _with_interval(accuracy.top1, accuracy.ci95)),
        ("top-5", percent(accuracy.top5)),
        ("loss", format_loss(accuracy.loss)),
        ("always the commonest class", percent(accuracy.majority_baseline)),
        (
            "calibration error",
            f"{format_points(calibration.ece)}; it is {percent(calibration.mean_confidence)} sure on average",
        ),
    ]
    shown = [fact for fact in facts if fact[1] != MISSING]
    return [*_table(shown), "", *_classes(accuracy)]


@format_result.register
def _(found: KnnResult) -> list[str]:
    chosen = (
        f"k = {found.k}, chosen on {min(FOLDS, found.train_images)} folds of {found.train_images:,} training images"
    )
    return [*_table([("top-1", _with_interval(found.top1, found.ci95))]), chosen]


@format_result.register
def _(found: LinearResult) -> list[str]:
    chosen = f"l2 = {found.l2:g}, chosen on a fifth of {found.train_images:,} training images, then fitted to all"
    doubt = [] if found.converged else ["the fit had not settled when it was stopped: the number may be a little off"]
    return [*_table([("top-1", _with_interval(found.top1, found.ci95))]), chosen, *doubt]


@format_result.register
def _(found: FewShotResult) -> list[str]:
    rows = [
        (f"{row.shots:,}", _mean_std(row.score), f"{_mean_std(row.oracle)} at {row.oracle.l2:g}") for row in found.rows
    ]
    if not rows:
        return list(found.skipped)
    seeds = f"the mean of seeds {', '.join(map(str, found.seeds))} and the deviation of one"
    return [
        *_table([("shots", "l2 = 1024", "best l2 *"), *rows]),
        seeds,
        "* chosen on the very images it is judged by, as big_vision's grid is: it flatters",
        *(f"left out: {printable(reason)}" for reason in found.skipped),
    ]


@format_result.register
def _(found: ResolutionResult) -> list[str]:
    rows = [
        (
            str(row.image_size),
            str(row.grid),
            _with_interval(row.top1, row.ci95),
            "<- trained" if row.is_train_size else "",
        )
        for row in found.rows
    ]
    return [*_table([("image", "patches", "top-1", ""), *rows]), *_stable_sizes(found)]


def _stable_sizes(found: ResolutionResult) -> Iterator[str]:
    """Where accuracy falls off, in words."""
    own = next(row for row in found.rows if row.is_train_size)
    sizes = [row.image_size for row in found.rows]
    first, last = sizes.index(found.min_size), sizes.index(found.max_size)
    if first == 0 and last == len(sizes) - 1:
        yield "no size tried is more than 2 points below the trained one"
        return
    held = f"from {found.min_size} to {found.max_size}" if first < last else f"at {found.min_size} alone"
    yield f"accuracy holds {held}, within 2 points of the trained size"
    if first:
        yield f"smaller images cost it: {_loss(found.rows[first - 1], own)}"
    if last < len(sizes) - 1:
        yield f"stretched further it falls off: {_loss(found.rows[last + 1], own)}; fine-tune at that size instead"


@format_result.register
def _(found: TokenMergingResult) -> list[str]:
    rows = [
        (
            str(row.per_layer),
            str(row.tokens),
            f"{row.images_per_second:.1f}",
            f"{row.speedup:.2f}",
            _with_interval(row.top1, row.ci95),
        )
        for row in found.rows
    ]
    spots = [PlotPoint(row.images_per_second, row.top1, str(row.per_layer)) for row in found.rows]
    best = next(row for row in found.rows if row.per_layer == found.best_per_layer)
    lost = format_points(max(0.0, found.rows[0].top1 - best.top1))
    verdict = (
        f"the fastest that loses at most half a point merges {best.per_layer}: {best.speedup:.2f} times, {lost} less"
    )
    return [
        *_table([("merged", "tokens left", "images/s", "times", "top-1"), *rows]),
        f"by {found.engine}, {found.batch_size} images at a time; merged is how many patches every layer merges",
        verdict if best.per_layer else "none that loses at most half a point is faster than merging nothing",
        "",
        *draw_plot(spots, "images/s", lambda share: f"{100 * share:g} %"),
    ]


def _loss(row: SizeResult, own: SizeResult) -> str:
    return f"{format_points(own.top1 - row.top1)} less at {row.image_size}"


def _classes(accuracy: Accuracy) -> Iterator[str]:
    """The classes, the worst first where there are many."""
    order = sorted(accuracy.classes, key=lambda each: (each.recall is None, each.recall))
    many = len(order) > MAX_CLASSES
    shown = order[:MAX_CLASSES] if many else accuracy.classes
    rows = [
        (
            shorten(printable(each.name), NAME),
            f"{each.images:,}",
            percent(each.recall),
            percent(each.precision),
            f"{shorten(printable(each.most_confused_with), NAME)} ({each.most_confused_count:,})"
            if each.most_confused_count
            else "",
        )
        for each in shown
    ]
    yield from _table([("class", "images", "right", "precision", "most taken for"), *rows])
    if many:
        yield f"... and {len(order) - MAX_CLASSES:,} more that are told better; --json has all of them"


def _with_interval(share: float, interval: Interval) -> str:
    return f"{percent(share)}  (95 % sure: {percent(interval.low)} to {percent(interval.high)})"


def _mean_std(score: Score) -> str:
    return f"{percent(score.mean)} +- {100 * score.std:.1f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows in columns, each as wide as its widest cell."""
    widths = [max(map(cell_len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        "  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
