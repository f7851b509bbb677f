"""The content of a run's report as plain values, its headline, and the findings that follow from its numbers."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from vitral import __version__
from vitral.core.activation import probabilities
from vitral.core.errors import DataError
from vitral.core.storage import write_file_atomically
from vitral.data.samples import SPLITS, Samples, Split
from vitral.data.thumbnails import thumbnail_url
from vitral.evaluation.accuracy import Accuracy, Calibration, ClassAccuracy
from vitral.evaluation.subject import Predictions
from vitral.explanation.page.page import ModelSection
from vitral.explanation.walkthrough.describe import format_bytes
from vitral.html.page import plural, render
from vitral.html.text import MISSING, format_count, format_loss, format_points, percent
from vitral.runs.report.charts import (
    SMOOTHED,
    MetricLine,
    calibration_chart,
    confusion_matrix,
    metric_charts,
    most_confused,
)
from vitral.runs.report.features import FeatureSection
from vitral.runs.report.pictures import PictureGrid
from vitral.weights.card import format_duration

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
    multiply_adds: int | None  # of training, forward and backward; null where they are not counted
    peak_memory: int  # bytes
    parameters: int


class Report(NamedTuple):
    """One run, finished or not; without an evaluation before the first one or without classes."""

    title: str
    status: Literal["running", "stopped", "done"]
    answers: str  # what its accuracy counts: "images are classified"
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
    augmented: PictureGrid | None = None  # training images, as training draws them
    masked: PictureGrid | None = None  # masked images and their reconstruction
    mixing: str = "none"  # of the images of a batch
    task: str = "classify"  # its kind
    features: FeatureSection | None = None  # of a task without labels
    heads: PictureGrid | None = None  # what the heads of the last layer attend to, of a task without labels


OVERFIT_RATIO = 1.05  # of the last held-out loss to the lowest


class Headline(NamedTuple):
    """The main number, its meaning, and its uncertainty."""

    number: str
    meaning: str
    detail: str


def headline(report: Report) -> Headline:
    """The accuracy of the evaluated model; before an evaluation the latest metric."""
    if report.evaluation:
        accuracy, images = report.evaluation.accuracy, f"{report.evaluation.split} image"
        interval = f"95% CI {percent(accuracy.ci95.low)} to {percent(accuracy.ci95.high)}"
        detail = f"{interval}; majority class: {percent(accuracy.majority_baseline)}"
        return Headline(
            percent(accuracy.top1), f"of {plural(accuracy.images, images)} are classified correctly", detail
        )
    held_out = [line for line in report.metrics if line["split"] != "train"]
    if not report.metrics:
        return Headline(MISSING, "nothing measured yet", "")
    line = held_out[-1] if held_out else report.metrics[-1]
    when = f"epoch {line['epoch']:.4g}, step {line['step']:,} of {report.steps:,}"
    if held_out and "knn_accuracy" in line:
        meaning = f"of the {line['split']} images have the class of most of their nearest neighbors (k-NN accuracy)"
        return Headline(percent(line["knn_accuracy"]), meaning, f"{when}; training did not use the labels")
    if "accuracy" not in line:
        return Headline(format_loss(line["loss"]), f"{line['split']} loss", when)
    which = line["split"] if held_out else "latest training"
    return Headline(percent(line["accuracy"]), f"of the {which} {report.answers} correctly", when)


def findings(report: Report) -> list[str]:
    """What stands out in the numbers, a sentence each."""
    about_accuracy = _accuracy_findings(report.evaluation.accuracy) if report.evaluation else ()
    return [*report.notes, *about_accuracy, *_loss_findings(report)]


def worst_first(classes: Sequence[ClassAccuracy]) -> list[ClassAccuracy]:
    """The classes by recall; those without images last."""
    return sorted(classes, key=lambda each: (2.0 if each.recall is None else each.recall, -each.images))


def _accuracy_findings(accuracy: Accuracy) -> Iterator[str]:
    margin, images = format_points((accuracy.ci95.high - accuracy.ci95.low) / 2), plural(accuracy.images, "image")
    yield f"With {images}, the 95% CI of the accuracy is ± {margin}: smaller differences are noise."
    if accuracy.ci95.low <= accuracy.majority_baseline:
        guess = f"always predicting the most frequent class ({percent(accuracy.majority_baseline)})"
        advice = "train longer, with more images or from pretrained weights"
        yield f"The model is not clearly better than {guess}: {advice}."
    weakest = worst_first(accuracy.classes)[0]
    if weakest.recall is not None and weakest.recall < accuracy.top1:
        right = f"{weakest.name} has the lowest recall: {weakest.correct:,} of {plural(weakest.images, 'image')}"
        wrong = plural(weakest.most_confused_count, "is", "are")
        yield f"{right}; {wrong} predicted as {weakest.most_confused_with}."


def _loss_findings(report: Report) -> Iterator[str]:
    """Whether the held-out loss shows overfitting, or a run that was too short."""
    held_out = [line for line in report.metrics if line["split"] != "train" and "loss" in line]
    if len(held_out) < 3:
        return
    last = held_out[-1]
    lines = [line for line in held_out if line["split"] == last["split"]]
    lowest: MetricLine = min(lines, key=lambda line: line["loss"])
    if last["loss"] > OVERFIT_RATIO * lowest["loss"]:
        best = f"was lowest at epoch {lowest['epoch']:.4g} ({format_loss(lowest['loss'])})"
        yield f"The {last['split']} loss {best} and has risen to {format_loss(last['loss'])}: the model overfits."
    elif lowest is last and report.status == "done":
        yield f"The {last['split']} loss was lowest at the end: a longer run may improve it."


MAX_MISTAKES = 24
MAX_BYTES = 1_500_000  # of thumbnails, so that the page stays below 3 MB
PICTURE_SIDE = 256  # pixels of a thumbnail, which can be enlarged


class Mistake(NamedTuple):
    """A wrong prediction; the thumbnail is empty for an image that cannot be read."""

    name: str
    label: str
    prediction: str
    probability: float  # of the prediction
    label_probability: float
    thumbnail: str


def worst_mistakes(evaluation: ReportEvaluation, samples: Samples) -> list[Mistake]:
    """At most 24 wrong predictions, most confident first."""
    predictions, items = evaluation.predictions, samples.of(evaluation.split)
    mistakes = (predictions.predicted != predictions.labels).nonzero()[:, 0]
    order = mistakes[predictions.confidence[mistakes].argsort(descending=True, stable=True)][:MAX_MISTAKES]
    found, left = [], MAX_BYTES
    for row in order.tolist():
        item = items[int(predictions.indices[row])]
        source = ""
        if left > 0:
            with suppress(DataError):  # it was readable when it was evaluated
                source = thumbnail_url(samples, item, PICTURE_SIDE)
        left -= len(source)
        label, wrong = int(predictions.labels[row]), int(predictions.predicted[row])
        scores = probabilities(predictions.logits[row].double(), predictions.activation).tolist()
        names = samples.classes[label], samples.classes[wrong]
        found.append(Mistake(item.name, *names, scores[wrong], scores[label], source))
    return found


TEMPLATE = Path(__file__).with_name("page.html")
MAX_CLASSES = 60
# The sections of the page in order, by the name that a link ends with.
CONTENTS = {
    "curves": "Training curves",
    "confusion": "Confusion matrix",
    "mistakes": "Worst mistakes",
    "relevance": "Relevance maps",
    "model": "The model itself",
    "map": "Map of the images",
    "neighbors": "Nearest neighbors",
    "clusters": "Clusters",
    "heads": "Attention of the heads",
    "masked": "Masked images",
    "augmented": "Augmented training images",
    "classes": "Classes, worst first",
    "cost": "Cost",
    "recipe": "Command and recipe",
    "next": "Next steps",
}


def write_report(path: Path, report: Report) -> None:
    """Write the page atomically."""
    write_file_atomically(path, page(report))


def page(report: Report) -> str:
    """The page as HTML."""
    evaluation, accuracy = report.evaluation, report.evaluation.accuracy if report.evaluation else None
    charts = metric_charts(report.metrics)
    if evaluation:
        charts.append(calibration_chart(evaluation.calibration, evaluation.accuracy.top1))
    rows = worst_first(accuracy.classes) if accuracy else []
    mistakes = worst_mistakes(evaluation, report.samples) if evaluation else []
    confused = most_confused(accuracy) if accuracy else []
    inner = report.attention.model if report.attention else None
    present = {
        "curves": bool(charts),
        "confusion": bool(confused),
        "mistakes": bool(mistakes),
        "relevance": bool(report.attention and (report.attention.right or report.attention.wrong)),
        "model": bool(inner and (inner.filters or inner.positions or inner.distances)),
        "map": bool(report.features),
        "neighbors": bool(report.features and report.features.neighbors),
        "clusters": bool(report.features),
        "heads": bool(report.heads),
        "masked": bool(report.masked),
        "augmented": bool(report.augmented),
        "classes": bool(rows),
        "cost": bool(evaluation),
        "next": bool(report.next),
    }
    return render(
        TEMPLATE,
        report=report,
        version=__version__,
        step=max((line["step"] for line in report.metrics), default=0),
        headline=headline(report),
        tiles=_tiles(evaluation) if evaluation else [],
        findings=findings(report),
        charts=charts,
        smoothed=sum(line["split"] == "train" for line in report.metrics) >= SMOOTHED,
        contents={place: title for place, title in CONTENTS.items() if present.get(place, True)},
        matrix=confusion_matrix(accuracy) if accuracy else None,
        confused=confused,
        rows=rows[:MAX_CLASSES],
        rest=rows[MAX_CLASSES:],
        mistakes=mistakes,
        cost=_costs(report.cost),
        data=[*_data(report.samples), *report.summary],
        percent=percent,
    )


def _tiles(evaluation: ReportEvaluation) -> list[Fact]:
    """The numbers beside the headline."""
    accuracy, calibration = evaluation.accuracy, evaluation.calibration
    recalls = [each.recall for each in accuracy.classes if each.recall is not None]
    tiles = [
        ("mean recall", percent(sum(recalls) / len(recalls))),
        ("cross-entropy loss", format_loss(accuracy.loss)),
        ("calibration error", percent(calibration.ece)),
        ("wrong predictions", plural(accuracy.images - sum(each.correct for each in accuracy.classes), "image")),
    ]
    return tiles if accuracy.top5 is None else [("top-5 accuracy", percent(accuracy.top5)), *tiles]


def _costs(cost: Cost) -> list[Fact]:
    speed = f"{cost.images / cost.seconds:,.0f} images/s" if cost.seconds > 0 else MISSING
    return [
        ("time", format_duration(cost.seconds)),
        ("images seen", format_count(cost.images)),
        ("speed, evaluation included", speed),
        *([] if cost.multiply_adds is None else [("multiply-adds", format_count(cost.multiply_adds))]),
        ("peak memory", format_bytes(cost.peak_memory)),
        ("parameters", format_count(cost.parameters)),
    ]


def _data(samples: Samples) -> list[Fact]:
    facts = [("data", samples.where)]
    facts += [(f"{split} images", f"{len(samples.of(split)):,}") for split in SPLITS if samples.of(split)]
    if len(samples.classes) > 1:
        few, many = min(samples.counts("train")), max(samples.counts("train"))
        each = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        facts += [("classes", f"{len(samples.classes):,}"), ("training images per class", each)]
    return facts
