"""All that the page of a run tells, handed in as plain values: the page reads no folder.

What a reader should see first, and what they might overlook, in sentences drawn from the numbers alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from vitral.data.doctor.finding import plural
from vitral.data.samples import Samples, Split
from vitral.evaluation.accuracy import Accuracy, ClassAccuracy
from vitral.evaluation.calibration import Calibration
from vitral.evaluation.outputs import Predictions
from vitral.explanation.page.page import Figures
from vitral.html.text import NOTHING, loss_of, percent, points

# A line of metrics.jsonl: step, epoch, split and what was measured; a step of training has its rate too.
Line = Mapping[str, Any]

Fact = tuple[str, str]  # what it is, and its value


class Judgment(NamedTuple):
    """The model's answers to a split of the data, and what they are worth."""

    split: Split
    answers: Predictions  # places are those in `samples.of(split)`
    accuracy: Accuracy
    calibration: Calibration


class Glance(NamedTuple):
    """An image, the answer, and the patches that spoke for it."""

    name: str
    label: str
    given: str
    probability: float  # of what was given
    picture: str  # what the model saw, as an address that holds it
    overlay: str  # the same under the map


class Attended(NamedTuple):
    """What is seen of a model on its page; glances only where its layers attend."""

    right: tuple[Glance, ...]
    wrong: tuple[Glance, ...]
    figures: Figures


class Cost(NamedTuple):
    """What the run took so far, over all its sessions."""

    seconds: float
    images: int  # shown in training, the same one again counted again
    multiply_adds: int  # of training, forward and backward
    peak_memory: int  # bytes
    parameters: int


class Story(NamedTuple):
    """One run, finished or not; without a judgment where there is none yet or where there are no classes to name."""

    title: str
    status: Literal["running", "stopped", "done"]
    answers: str  # what its accuracy counts: "images are named"
    steps: int  # of the whole run
    command: str  # as it was typed
    summary: Sequence[Fact]  # of the recipe
    recipe: str  # all of it, as JSON
    environment: Sequence[Fact]
    samples: Samples
    metrics: Sequence[Line]
    judgment: Judgment | None
    attended: Attended | None  # of the judged model; there is none without a judgment
    cost: Cost
    notes: Sequence[str]  # whole sentences
    next: Sequence[Fact]  # what a command is for, and the command


RISEN = 1.05  # a held-out loss this many times its lowest has risen


class Headline(NamedTuple):
    """The one number, what it is, and how far to believe it."""

    number: str
    meaning: str
    detail: str


def headline(story: Story) -> Headline:
    """The accuracy where the model was judged; before that the latest that was measured."""
    judgment = story.judgment
    if judgment is not None:
        accuracy = judgment.accuracy
        detail = (
            f"95 % interval {percent(accuracy.interval.low)} to {percent(accuracy.interval.high)}; "
            f"always naming the commonest class would give {percent(accuracy.usual)}"
        )
        meaning = f"of {plural(accuracy.images, f'{judgment.split} image')} are named rightly"
        return Headline(percent(accuracy.top1), meaning, detail)
    held_out = [line for line in story.metrics if line["split"] != "train"]
    if not story.metrics:
        return Headline(NOTHING, "nothing is measured yet", "")
    line = held_out[-1] if held_out else story.metrics[-1]
    when = f"epoch {line['epoch']:g}, step {line['step']:,} of {story.steps:,}"
    if "accuracy" not in line:
        return Headline(loss_of(line["loss"]), f"{line['split']} loss", when)
    which = line["split"] if held_out else "latest training"
    return Headline(percent(line["accuracy"]), f"of the {which} {story.answers} rightly", when)


def remarks(story: Story) -> list[str]:
    """Sentences that the numbers bear out; none where there is nothing to say."""
    found = list(story.notes)
    if story.judgment is not None:
        found += [*_certainty(story.judgment.accuracy), *_weakest(story.judgment.accuracy)]
    return found + _course(story)


def worst_first(classes: Sequence[ClassAccuracy]) -> list[ClassAccuracy]:
    """The classes by the share of their images that is named rightly; those without images last."""
    return sorted(classes, key=lambda each: (2.0 if each.recall is None else each.recall, -each.images))


def _certainty(accuracy: Accuracy) -> list[str]:
    reach = (accuracy.interval.high - accuracy.interval.low) / 2
    images = plural(accuracy.images, "image")
    return [f"With {images}, the accuracy is known to {points(reach)} either way: smaller differences mean little."]


def _weakest(accuracy: Accuracy) -> list[str]:
    weakest = worst_first(accuracy.classes)[0]
    if weakest.recall is None or weakest.recall >= accuracy.top1:
        return []
    right = f"{weakest.name} is recognized least: {weakest.right:,} of {plural(weakest.images, 'image')}"
    return [f"{right}; {weakest.times:,} {'is' if weakest.times == 1 else 'are'} taken for {weakest.taken_for}."]


def _course(story: Story) -> list[str]:
    """How the loss on images that were not learned from went."""
    held_out = [line for line in story.metrics if line["split"] != "train" and "loss" in line]
    if len(held_out) < 3:
        return []
    split = held_out[-1]["split"]
    lines = [line for line in held_out if line["split"] == split]
    lowest: Line = min(lines, key=lambda line: line["loss"])
    last = lines[-1]
    if last["loss"] > RISEN * lowest["loss"]:
        return [
            f"The {split} loss was lowest at epoch {lowest['epoch']:g} ({loss_of(lowest['loss'])}) and has risen "
            f"to {loss_of(last['loss'])}: the model has begun to learn the training images by heart."
        ]
    if lowest is last and story.status == "done":
        return [f"The {split} loss was lowest at the end: a longer run may go further."]
    return []
