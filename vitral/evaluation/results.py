"""An evaluation for readers: tables and plots for each result, as text for a terminal or HTML for a notebook."""

from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from math import log2
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from vitral.evaluation.abstention import AbstentionResult
from vitral.evaluation.accuracy import Accuracy, AccuracyResult, Interval
from vitral.evaluation.calibration import CalibrationErrors, CalibrationResult
from vitral.evaluation.charts import coverage_chart, reliability_chart
from vitral.evaluation.evaluators import Evaluation
from vitral.evaluation.fewshot import FewShotResult, Score
from vitral.evaluation.knn import FOLDS, KnnResult
from vitral.evaluation.label_sets import LabelSetsResult
from vitral.evaluation.linear_probe import LinearResult
from vitral.evaluation.ood import OodResult
from vitral.evaluation.resolution import ResolutionResult, SizeResult
from vitral.evaluation.robustness.conditions import PARTS
from vitral.evaluation.robustness.evaluator import RobustnessCurve, RobustnessResult
from vitral.evaluation.token_merging import TokenMergingResult
from vitral.html.charts import linear_axis
from vitral.html.notebook import Block, Charts, Plot, Table, notebook_card
from vitral.html.page import printable
from vitral.html.text import MISSING, align_columns, format_loss, format_points, percent, shorten

WIDTH, HEIGHT = 56, 9  # characters and lines between the axes


class PlotPoint(NamedTuple):
    """A point of a curve and its label."""

    x: float
    y: float
    label: str


def draw_plot(points: Sequence[PlotPoint], across: str, upward: Callable[[float], str]) -> list[str]:
    """A plot of points: `upward` formats the numbers of the y axis, `across` names the x axis.

    Of overlapping labels the first stays.
    """
    rightward = linear_axis(min(point.x for point in points), max(point.x for point in points), 0, WIDTH - 1, 6)
    height = linear_axis(min(point.y for point in points), max(point.y for point in points), HEIGHT - 1, 0, 4)
    paper = [[" "] * (WIDTH + 4) for _ in range(HEIGHT)]
    for point in points:
        line, start = paper[round(height.scale(point.y))], round(rightward.scale(point.x))
        place = slice(start, start + len(point.label))
        if not "".join(line[place]).strip():
            line[place] = point.label
    numbers = {round(height.scale(value)): upward(value) for value in height.values()}
    margin = max(map(len, numbers.values()))
    lines = [f"{numbers.get(row, ''):>{margin}} |{''.join(letters)}".rstrip() for row, letters in enumerate(paper)]
    below = [" "] * (WIDTH + 8)
    for position, text in rightward.ticks():
        below[round(position) : round(position) + len(text)] = text
    empty = " " * (margin + 2)
    return [*lines, f"{' ' * margin} +{'-' * WIDTH}", f"{empty}{''.join(below).rstrip()}  {across}"]


MAX_CLASSES = 12
NAME = 24  # columns that the name of a class may take
INDENT = "  "


def format_evaluation(evaluation: Evaluation) -> str:
    """An evaluation as text; lines without indentation are headings."""
    lines = [_title(evaluation)]
    for result in evaluation.results:
        lines += ["", result.kind, *(f"{INDENT}{line}".rstrip() for line in format_result(result))]
    return "\n".join(lines)


def _title(evaluation: Evaluation) -> str:
    count = f"{evaluation.images:,} {evaluation.split} images of {evaluation.classes:,} classes"
    return f"{printable(evaluation.model)} on {printable(evaluation.data)}: {count}"


def print_evaluation(text: str, console: Console) -> None:
    """Print the text with bold headings."""
    for line in text.splitlines():
        console.print(Text(line, style="" if line.startswith(INDENT) else "bold"), soft_wrap=True)


def evaluation_card(evaluation: Evaluation) -> str:
    """An evaluation as HTML for a notebook."""
    sections: dict[str, Sequence[Block]] = {result.kind: describe_result(result) for result in evaluation.results}
    if evaluation.notes:
        sections["notes"] = evaluation.notes
    return notebook_card(_title(evaluation), sections)


def format_result(result: object) -> list[str]:
    """The lines of one result."""
    lines: list[str] = []
    for block in describe_result(result):
        match block:
            case Table():
                lines += align_columns(block.rows)
            case Plot():
                lines += block.lines
            case Charts():  # their numbers are in the tables
                pass
            case _:
                lines.append(str(block))
    return lines


@singledispatch
def describe_result(result: object) -> list[Block]:
    """One result as lines of text, tables and plots."""
    raise NotImplementedError(type(result).__name__)


@describe_result.register
def _(result: AccuracyResult) -> list[Block]:
    accuracy, calibration = result.accuracy, result.calibration
    confidence = percent(calibration.mean_confidence)
    facts = [
        ("top-1", _with_interval(accuracy.top1, accuracy.ci95)),
        ("top-5", percent(accuracy.top5)),
        ("loss", format_loss(accuracy.loss)),
        ("most frequent class", percent(accuracy.majority_baseline)),
        ("calibration error", f"{format_points(calibration.ece)}; mean confidence {confidence}"),
    ]
    return [Table([fact for fact in facts if fact[1] != MISSING]), "", *_classes(accuracy)]


@describe_result.register
def _(result: CalibrationResult) -> list[Block]:
    shown = {"as it is": result.now}
    if result.scaled and result.temperature:
        shown[f"temperature {result.temperature:.4g}"] = result.scaled
    table = [("", *shown)]
    table += [(name, *(value(errors) for errors in shown.values())) for name, value in CALIBRATION_ROWS.items()]
    bins = [("confidence", "images", "mean confidence", "accuracy")]
    for each in result.now.bins:
        if each.images:
            cells = (f"{each.images:,}", percent(each.confidence), percent(each.accuracy))
            bins.append((f"{percent(each.low)} to {percent(each.high)}", *cells))
    stored = f"the model has a temperature of {result.stored_temperature:.4g} already"
    return [
        f"top-1 {percent(result.accuracy)} on {result.images:,} images",
        *([stored] if result.stored_temperature != 1 else []),
        Table(table, has_header=True),
        result.note,
        "",
        Table(bins, has_header=True),
        Charts([reliability_chart(result)]),
    ]


def _chance(errors: CalibrationErrors) -> str:
    return f"{format_points(errors.ece_by_chance)}, 95% below {format_points(errors.ece_by_chance_p95)}"


CALIBRATION_ROWS: dict[str, Callable[[CalibrationErrors], str]] = {
    "loss": lambda errors: format_loss(errors.nll),
    "Brier score": lambda errors: f"{errors.brier:.4f}",
    "calibration error": lambda errors: format_points(errors.ece),
    "  by chance alone": _chance,
    "  bins of equal mass": lambda errors: format_points(errors.ece_equal_mass),
    "  classwise": lambda errors: format_points(errors.classwise_ece),
    "mean confidence": lambda errors: percent(errors.mean_confidence),
}


@describe_result.register
def _(result: AbstentionResult) -> list[Block]:
    points = [("answered", "threshold", "accuracy")]
    for point in result.points:
        cells = (f"{point.threshold:.4f}", _with_interval(point.accuracy, point.ci95))
        points.append((percent(point.coverage), *cells))
    targets = [("wanted", "threshold", "answered", "accuracy")]
    for target in result.targets:
        threshold = MISSING if target.threshold is None else f"{target.threshold:.4f}"
        cells = (MISSING, MISSING)
        if target.answered:
            cells = percent(target.answered.coverage), _with_interval(target.answered.accuracy, target.answered.ci95)
        targets.append((percent(target.accuracy), threshold, *cells))
    chosen = f"thresholds have the wanted accuracy with 95% confidence on {result.chosen_images:,} images of "
    place = "which are other images" if result.chosen_apart else "the same images: optimistic"
    return [
        f"area under the risk-coverage curve {result.aurc:.4f}, {result.excess_aurc:.4f} above the least possible",
        Table(points, has_header=True),
        "",
        Table(targets, has_header=True),
        f"{chosen}{result.chosen_on}, {place}",
        Charts([coverage_chart(result)]),
    ]


@describe_result.register
def _(result: OodResult) -> list[Block]:
    table = [("score", "AUROC", "FPR at 95% TPR")]
    table += [(score.name, percent(score.auroc), percent(score.fpr95)) for score in result.scores]
    rank = f"; rank {result.rank} of {result.width}" if result.rank < result.width else ""
    return [
        f"{result.images:,} images against {result.ood_images:,} of {printable(result.data)}",
        Table(table, has_header=True),
        f"mahalanobis and knn (k = {result.k}) are fitted on {result.train_images:,} training images{rank}",
    ]


@describe_result.register
def _(result: LabelSetsResult) -> list[Block]:
    facts = [
        ("top-1", _with_interval(result.top1, result.ci95)),
        ("top-5", percent(result.top5)),
        (f"top-1 of {result.single_label:,} images with one label", percent(result.single_label_top1)),
    ]
    shown = [fact for fact in facts if fact[1] != MISSING]
    return [Table(shown), f"right if it is any label of the image, which has {result.mean_labels:.2f} on average"]


@describe_result.register
def _(result: KnnResult) -> list[Block]:
    folds = min(FOLDS, result.train_images)
    chosen = f"k = {result.k}, chosen by {folds}-fold cross-validation on {result.train_images:,} training images"
    return [Table([("top-1", _with_interval(result.top1, result.ci95))]), chosen]


@describe_result.register
def _(result: LinearResult) -> list[Block]:
    chosen = f"l2 = {result.l2:g}, chosen on a fifth of {result.train_images:,} training images, then fitted to all"
    doubt = [] if result.converged else ["the fit did not converge: the accuracy may be slightly off"]
    return [Table([("top-1", _with_interval(result.top1, result.ci95))]), chosen, *doubt]


def _format_l2(l2: float) -> str:
    """A power of two as it reads best: `1024`, `2^-10`."""
    return f"{l2:g}" if l2 >= 1 else f"2^{round(log2(l2))}"


@describe_result.register
def _(result: FewShotResult) -> list[Block]:
    table = [("shots", "l2 = 1024", "best l2 *")]
    for row in result.rows:
        table.append(
            (f"{row.shots:,}", _mean_std(row.score), f"{_mean_std(row.oracle)} at {_format_l2(row.oracle.l2)}")
        )
    if not result.rows:
        return list(result.skipped)
    return [
        Table(table, has_header=True),
        f"mean and standard deviation over seeds {', '.join(map(str, result.seeds))}",
        "* chosen on the test images, as in big_vision: optimistic",
        *(f"skipped: {printable(reason)}" for reason in result.skipped),
    ]


@describe_result.register
def _(result: ResolutionResult) -> list[Block]:
    table = [("image", "patches", "top-1", "")]
    for row in result.rows:
        mark = "<- training size" if row.is_train_size else ""
        table.append((str(row.image_size), str(row.grid), _with_interval(row.top1, row.ci95), mark))
    return [Table(table, has_header=True), *_stable_sizes(result)]


def _stable_sizes(result: ResolutionResult) -> Iterator[str]:
    """The range of sizes that keep the accuracy, in words."""
    own = next(row for row in result.rows if row.is_train_size)
    sizes = [row.image_size for row in result.rows]
    first, last = sizes.index(result.min_size), sizes.index(result.max_size)
    if first == 0 and last == len(sizes) - 1:
        yield "no size loses more than 2 points against the training size"
        return
    held = f"from {result.min_size} to {result.max_size}" if first < last else f"only at {result.min_size}"
    yield f"{held} the accuracy stays within 2 points of that at the training size"
    if first:
        yield f"smaller images lose {_lost_points(result.rows[first - 1], own)}"
    if last < len(sizes) - 1:
        yield f"larger images lose {_lost_points(result.rows[last + 1], own)}; fine-tune at that size"


@describe_result.register
def _(result: TokenMergingResult) -> list[Block]:
    table = [("merged", "tokens left", "images/s", "speedup", "top-1")]
    for row in result.rows:
        speed, top1 = f"{row.images_per_second:.1f}", _with_interval(row.top1, row.ci95)
        table.append((str(row.per_layer), str(row.tokens), speed, f"{row.speedup:.2f}", top1))
    points = [PlotPoint(row.images_per_second, row.top1, str(row.per_layer)) for row in result.rows]
    best = next(row for row in result.rows if row.per_layer == result.best_per_layer)
    lost = format_points(max(0.0, result.rows[0].top1 - best.top1))
    verdict = f"the fastest within half a point merges {best.per_layer}: {best.speedup:.2f}x, {lost} less"
    return [
        Table(table, has_header=True),
        f"{result.engine}, batch size {result.batch_size}; merged: patches merged in every layer",
        verdict if best.per_layer else "nothing within half a point is faster than no merging",
        "",
        Plot(draw_plot(points, "images/s", lambda share: f"{100 * share:g}%")),
    ]


@describe_result.register
def _(result: RobustnessResult) -> list[Block]:
    of = f" of {result.images_in_split:,}" if result.images < result.images_in_split else ""
    blocks: list[Block] = [
        Table([("top-1", _with_interval(result.top1, result.ci95))]),
        f"{result.images:,}{of} images"
        + (f"; patches and textures are from {result.held_out}" * bool(result.held_out)),
    ]
    for part in PARTS:
        curves = result.of(part)
        if curves:
            blocks += ["", part, Table(_curve_rows(curves), has_header=True)]
    if result.corruptions:
        found = result.corruptions
        mce = f"; mCE {percent(found.mce)}, relative to {printable(found.relative_to)}" if found.mce is not None else ""
        blocks += ["", f"mean corruption error {percent(found.mean_error)}, relative to no other model{mce}"]
        blocks += [f"corruptions with the constants of {'CIFAR-10-C' if found.constants == 'cifar' else 'ImageNet-C'}"]
    return [*blocks, f"page: {printable(result.page)}"] if result.page else blocks


def _curve_rows(curves: Sequence[RobustnessCurve]) -> list[tuple[str, ...]]:
    """A row for each curve, a column for each of its points."""
    widest = max(curves, key=lambda curve: len(curve.points))
    head = ["", *(point.label for point in widest.points)]
    rows = [(each.name, *(percent(point.top1) for point in each.points)) for each in curves]
    return [tuple(head), *rows]


def _lost_points(row: SizeResult, own: SizeResult) -> str:
    return f"{format_points(own.top1 - row.top1)} at {row.image_size}"


def _classes(accuracy: Accuracy) -> Iterator[Block]:
    """The table of classes; the worst come first if there are many."""
    order = sorted(accuracy.classes, key=lambda each: (each.recall is None, each.recall))
    many = len(order) > MAX_CLASSES
    table = [("class", "images", "recall", "precision", "most confused with")]
    for each in order[:MAX_CLASSES] if many else accuracy.classes:
        confused = (
            f"{_shown(each.most_confused_with)} ({each.most_confused_count:,})" if each.most_confused_count else ""
        )
        table.append((_shown(each.name), f"{each.images:,}", percent(each.recall), percent(each.precision), confused))
    yield Table(table, has_header=True)
    if many:
        yield f"... and {len(order) - MAX_CLASSES:,} more with higher recall; --json lists all"


def _shown(name: str) -> str:
    return shorten(printable(name), NAME)


def _with_interval(share: float, interval: Interval) -> str:
    return f"{percent(share)}  (95% CI {percent(interval.low)} to {percent(interval.high)})"


def _mean_std(score: Score) -> str:
    return f"{percent(score.mean)} +- {100 * score.std:.1f}"
