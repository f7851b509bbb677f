"""The report of a run as one HTML file that works offline, and the worst mistakes on it."""

from pathlib import Path
from typing import NamedTuple

from vitral import __version__
from vitral.core.activation import probabilities
from vitral.core.errors import DataError
from vitral.core.storage import write_file_atomically
from vitral.data.doctor.finding import plural
from vitral.data.samples import SPLITS, Samples
from vitral.data.thumbnails import thumbnail_url
from vitral.explanation.walkthrough.describe import format_bytes
from vitral.html.page import render
from vitral.html.text import MISSING, format_count, format_loss, percent
from vitral.runs.report.confusion import calibration_chart, confusion_matrix, most_confused
from vitral.runs.report.curves import metric_charts
from vitral.runs.report.report import Cost, Fact, Report, ReportEvaluation, findings, headline, worst_first
from vitral.weights.card import format_duration

MAX_MISTAKES = 24
MAX_BYTES = 1_500_000  # of thumbnails, so that the page stays below 3 MB


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
    wrong = (predictions.predicted != predictions.labels).nonzero()[:, 0]
    order = wrong[predictions.confidence[wrong].argsort(descending=True, stable=True)][:MAX_MISTAKES]
    found, left = [], MAX_BYTES
    for row in order.tolist():
        item = items[int(predictions.indices[row])]
        source = ""
        if left > 0:
            try:
                source = thumbnail_url(samples, item)
            except DataError:  # it was readable when it was evaluated
                source = ""
        left -= len(source)
        label, answer = int(predictions.labels[row]), int(predictions.predicted[row])
        chance = probabilities(predictions.logits[row].double(), predictions.activation).tolist()
        found.append(
            Mistake(item.name, samples.classes[label], samples.classes[answer], chance[answer], chance[label], source)
        )
    return found


TEMPLATE = Path(__file__).with_name("page.html")
MAX_CLASSES = 60


def write_report(path: Path, report: Report) -> None:
    """Write the page; whoever looks finds the whole file or the one before it."""
    write_file_atomically(path, page(report))


def page(report: Report) -> str:
    """The page as HTML."""
    evaluation = report.evaluation
    charts = metric_charts(report.metrics)
    if evaluation is not None:
        charts.append(calibration_chart(evaluation.calibration, evaluation.accuracy.top1))
    rows = worst_first(evaluation.accuracy.classes) if evaluation is not None else []
    return render(
        TEMPLATE,
        report=report,
        version=__version__,
        step=max((line["step"] for line in report.metrics), default=0),
        headline=headline(report),
        tiles=_tiles(evaluation) if evaluation is not None else [],
        findings=findings(report),
        charts=charts,
        matrix=confusion_matrix(evaluation.accuracy) if evaluation is not None else None,
        confused=most_confused(evaluation.accuracy) if evaluation is not None else [],
        rows=rows[:MAX_CLASSES],
        rest=rows[MAX_CLASSES:],
        mistakes=worst_mistakes(evaluation, report.samples) if evaluation is not None else [],
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
        ("multiply-adds", format_count(cost.multiply_adds)),
        ("peak memory", format_bytes(cost.peak_memory)),
        ("parameters", format_count(cost.parameters)),
    ]


def _data(samples: Samples) -> list[Fact]:
    facts = [("data", samples.where)]
    facts += [(f"{split} images", f"{len(samples.of(split)):,}") for split in SPLITS if samples.of(split)]
    if len(samples.classes) > 1:
        facts.append(("classes", f"{len(samples.classes):,}"))
        counts = samples.counts("train")
        few, many = min(counts), max(counts)
        each = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        facts.append(("training images each", each))
    return facts
