"""The story as a page: one file that needs no network."""

from pathlib import Path

from vitral import __version__
from vitral.data.doctor.finding import plural
from vitral.data.pages import render, write_whole
from vitral.data.samples import SPLITS, Samples
from vitral.explain.description import amount
from vitral.report.confusion import draw_matrix, most_confused
from vitral.report.curves import draw_curves
from vitral.report.mistakes import worst_mistakes
from vitral.report.reliability import draw_calibration
from vitral.report.remarks import headline, remarks, worst_first
from vitral.report.story import Cost, Fact, Judgement, Story
from vitral.report.words import NOTHING, large, loss_of, percent
from vitral.weights.card import duration

TEMPLATE = Path(__file__).with_name("page.html")
MOST_CLASSES = 60


def write_report(path: Path, story: Story) -> None:
    """Write the page; whoever looks finds the whole file or the one before it."""
    write_whole(path, page(story))


def page(story: Story) -> str:
    """The page as HTML."""
    judgement = story.judgement
    charts = draw_curves(story.metrics)
    if judgement is not None:
        charts.append(draw_calibration(judgement.calibration, judgement.accuracy.top1))
    rows = worst_first(judgement.accuracy.classes) if judgement is not None else []
    return render(
        TEMPLATE,
        story=story,
        version=__version__,
        step=max((line["step"] for line in story.metrics), default=0),
        headline=headline(story),
        tiles=_tiles(judgement) if judgement is not None else [],
        remarks=remarks(story),
        charts=charts,
        matrix=draw_matrix(judgement.accuracy) if judgement is not None else None,
        confused=most_confused(judgement.accuracy) if judgement is not None else [],
        rows=rows[:MOST_CLASSES],
        rest=rows[MOST_CLASSES:],
        mistakes=worst_mistakes(judgement, story.samples) if judgement is not None else [],
        cost=_costs(story.cost),
        data=[*_data(story.samples), *story.summary],
        percent=percent,
    )


def _tiles(judgement: Judgement) -> list[Fact]:
    """What a reader asks after the headline."""
    accuracy, calibration = judgement.accuracy, judgement.calibration
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
