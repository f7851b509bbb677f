"""The story as a page: one file that needs no network.

The worst mistakes: wrong answers that the model was most sure of, as pictures.
"""

from pathlib import Path
from typing import NamedTuple

from vitral import __version__
from vitral.core.errors import DataError
from vitral.data.doctor.finding import plural
from vitral.data.samples import SPLITS, Samples
from vitral.data.thumbnails import thumbnail
from vitral.explanation.walkthrough.describe import amount
from vitral.html.page import render, write_whole
from vitral.html.text import NOTHING, large, loss_of, percent
from vitral.runs.report.confusion import draw_calibration, draw_matrix, most_confused
from vitral.runs.report.curves import draw_curves
from vitral.runs.report.story import Cost, Fact, Judgment, Story, headline, remarks, worst_first
from vitral.weights.card import duration

MOST_MISTAKES = 24
MOST_BYTES = 1_500_000  # of thumbnails, so that the page stays below 3 MB


class Mistake(NamedTuple):
    """An image, the class it is labeled with and the one it was given; without a source where it cannot be shown."""

    name: str
    label: str
    given: str
    probability: float  # of what was given
    label_probability: float
    source: str


def worst_mistakes(judgment: Judgment, samples: Samples) -> list[Mistake]:
    """At most 24 of them, the surest first."""
    answers, items = judgment.answers, samples.of(judgment.split)
    given, sure = answers.given, answers.sure  # each (N,)
    wrong = (given != answers.labels).nonzero()[:, 0]
    order = wrong[sure[wrong].argsort(descending=True, stable=True)][:MOST_MISTAKES]
    found, left = [], MOST_BYTES
    for row in order.tolist():
        item = items[int(answers.places[row])]
        source = ""
        if left > 0:
            try:
                source = thumbnail(samples, item)
            except DataError:  # it was sound when it was judged: the page is not the place to tell
                source = ""
        left -= len(source)
        label, answer = int(answers.labels[row]), int(given[row])
        chance = answers.logits[row].double().softmax(dim=0).tolist()
        found.append(
            Mistake(item.name, samples.classes[label], samples.classes[answer], chance[answer], chance[label], source)
        )
    return found


TEMPLATE = Path(__file__).with_name("page.html")
MOST_CLASSES = 60


def write_report(path: Path, story: Story) -> None:
    """Write the page; whoever looks finds the whole file or the one before it."""
    write_whole(path, page(story))


def page(story: Story) -> str:
    """The page as HTML."""
    judgment = story.judgment
    charts = draw_curves(story.metrics)
    if judgment is not None:
        charts.append(draw_calibration(judgment.calibration, judgment.accuracy.top1))
    rows = worst_first(judgment.accuracy.classes) if judgment is not None else []
    return render(
        TEMPLATE,
        story=story,
        version=__version__,
        step=max((line["step"] for line in story.metrics), default=0),
        headline=headline(story),
        tiles=_tiles(judgment) if judgment is not None else [],
        remarks=remarks(story),
        charts=charts,
        matrix=draw_matrix(judgment.accuracy) if judgment is not None else None,
        confused=most_confused(judgment.accuracy) if judgment is not None else [],
        rows=rows[:MOST_CLASSES],
        rest=rows[MOST_CLASSES:],
        mistakes=worst_mistakes(judgment, story.samples) if judgment is not None else [],
        cost=_costs(story.cost),
        data=[*_data(story.samples), *story.summary],
        percent=percent,
    )


def _tiles(judgment: Judgment) -> list[Fact]:
    """What a reader asks after the headline."""
    accuracy, calibration = judgment.accuracy, judgment.calibration
    recalls = [each.recall for each in accuracy.classes if each.recall is not None]
    tiles = [
        ("mean over classes", percent(sum(recalls) / len(recalls))),
        ("cross-entropy loss", loss_of(accuracy.loss)),
        ("calibration error", percent(calibration.error)),
        ("wrong", plural(accuracy.images - sum(each.right for each in accuracy.classes), "image")),
    ]
    return tiles if accuracy.top5 is None else [("among the first five", percent(accuracy.top5)), *tiles]


def _costs(cost: Cost) -> list[Fact]:
    speed = f"{cost.images / cost.seconds:,.0f} images/s" if cost.seconds > 0 else NOTHING
    return [
        ("time", duration(cost.seconds)),
        ("images seen", large(cost.images)),
        ("speed, evaluation included", speed),
        ("multiply-adds", large(cost.multiply_adds)),
        ("peak memory", amount(cost.peak_memory)),
        ("parameters", large(cost.parameters)),
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
