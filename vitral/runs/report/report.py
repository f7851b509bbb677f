"""The content of a run's report as plain values, its headline, and the findings that follow from its numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from vitral.data.doctor.finding import plural
from vitral.data.samples import Samples, Split
from vitral.evaluation.accuracy import Accuracy, ClassAccuracy
from vitral.evaluation.calibration import Calibration
from vitral.evaluation.outputs import Predictions
from vitral.explanation.page.page import ModelSection
from vitral.html.text import MISSING, format_loss, format_points, percent

# A line of metrics.jsonl: step, epoch, split and metrics; training steps also have the learning rate.
MetricLine = Mapping[str, Any]

Fact = tuple[str, str]  # name and value


class ReportEvaluation(NamedTuple):
    """The predictions on a split of the data, with accuracy and calibration."""

    split: Split
    predictions: Predictions  # indices are those in `samples.of(split)`
    accuracy: Accuracy
    calibration: Calibration


class AttentionExample(NamedTuple):
    """An image, its prediction, and its relevance map."""

    name: str
    label: str
    prediction: str
    probability: float  # of the prediction
    image: str  # the crop that the model is given, as a data URI
    overlay: str  # the same under the relevance map


class AttentionSection(NamedTuple):
    """Relevance maps of some images, for a model with attention; and the model itself."""

    right: tuple[AttentionExample, ...]
    wrong: tuple[AttentionExample, ...]
    model: ModelSection


class Cost(NamedTuple):
    """The cost of the run so far, over all its sessions."""

    seconds: float
    images: int  # seen in training, counting repetitions
    multiply_adds: int  # of training, forward and backward
    peak_memory: int  # bytes
    parameters: int


class Report(NamedTuple):
    """One run, finished or not; without an evaluation before the first one or without classes."""

    title: str
    status: Literal["running", "stopped", "done"]
    answers: str  # what its accuracy counts: "images are named"
    steps: int  # of the whole run
    command: str  # as typed
    summary: Sequence[Fact]  # of the recipe
    recipe: str  # all of it, as JSON
    environment: Sequence[Fact]
    samples: Samples
    metrics: Sequence[MetricLine]
    evaluation: ReportEvaluation | None
    attention: AttentionSection | None  # of the evaluated model; None without an evaluation
    cost: Cost
    notes: Sequence[str]  # whole sentences
    next: Sequence[Fact]  # the purpose of a command, and the command


OVERFIT_RATIO = 1.05  # of the last held-out loss to the lowest


class Headline(NamedTuple):
    """The main number, its meaning, and its uncertainty."""

    number: str
    meaning: str
    detail: str


def headline(report: Report) -> Headline:
    """The accuracy of the evaluated model; before an evaluation the latest metric."""
    evaluation = report.evaluation
    if evaluation is not None:
        accuracy = evaluation.accuracy
        detail = (
            f"95 % CI {percent(accuracy.ci95.low)} to {percent(accuracy.ci95.high)}; "
            f"majority class: {percent(accuracy.majority_baseline)}"
        )
        meaning = f"of {plural(accuracy.images, f'{evaluation.split} image')} are classified correctly"
        return Headline(percent(accuracy.top1), meaning, detail)
    held_out = [line for line in report.metrics if line["split"] != "train"]
    if not report.metrics:
        return Headline(MISSING, "nothing measured yet", "")
    line = held_out[-1] if held_out else report.metrics[-1]
    when = f"epoch {line['epoch']:g}, step {line['step']:,} of {report.steps:,}"
    if "accuracy" not in line:
        return Headline(format_loss(line["loss"]), f"{line['split']} loss", when)
    which = line["split"] if held_out else "latest training"
    return Headline(percent(line["accuracy"]), f"of the {which} {report.answers} correctly", when)


def findings(report: Report) -> list[str]:
    """What stands out in the numbers, a sentence each."""
    found = list(report.notes)
    if report.evaluation is not None:
        found += [*_certainty(report.evaluation.accuracy), *_weakest(report.evaluation.accuracy)]
    return found + _course(report)


def worst_first(classes: Sequence[ClassAccuracy]) -> list[ClassAccuracy]:
    """The classes by recall; those without images last."""
    return sorted(classes, key=lambda each: (2.0 if each.recall is None else each.recall, -each.images))


def _certainty(accuracy: Accuracy) -> list[str]:
    reach = (accuracy.ci95.high - accuracy.ci95.low) / 2
    images = plural(accuracy.images, "image")
    return [f"With {images}, the 95 % CI of the accuracy is ± {format_points(reach)}: smaller differences are noise."]


def _weakest(accuracy: Accuracy) -> list[str]:
    weakest = worst_first(accuracy.classes)[0]
    if weakest.recall is None or weakest.recall >= accuracy.top1:
        return []
    right = f"{weakest.name} has the lowest recall: {weakest.correct:,} of {plural(weakest.images, 'image')}"
    wrong = plural(weakest.most_confused_count, "is", "are")
    return [f"{right}; {wrong} predicted as {weakest.most_confused_with}."]


def _course(report: Report) -> list[str]:
    """Whether the held-out loss shows overfitting, or a run that was too short."""
    held_out = [line for line in report.metrics if line["split"] != "train" and "loss" in line]
    if len(held_out) < 3:
        return []
    split = held_out[-1]["split"]
    lines = [line for line in held_out if line["split"] == split]
    lowest: MetricLine = min(lines, key=lambda line: line["loss"])
    last = lines[-1]
    if last["loss"] > OVERFIT_RATIO * lowest["loss"]:
        return [
            f"The {split} loss was lowest at epoch {lowest['epoch']:g} ({format_loss(lowest['loss'])}) and has risen "
            f"to {format_loss(last['loss'])}: the model overfits."
        ]
    if lowest is last and report.status == "done":
        return [f"The {split} loss was lowest at the end: a longer run may improve it."]
    return []
