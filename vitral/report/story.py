"""All that the page of a run tells, handed in as plain values: the page reads no folder."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from vitral.data.samples import Samples, Split
from vitral.evaluate.accuracy import Accuracy
from vitral.evaluate.answers import Answers
from vitral.evaluate.calibration import Calibration
from vitral.explain.view import Figures
from vitral.report.chart import Chart

# A line of metrics.jsonl: step, epoch, split and what was measured; a step of training has its rate too.
Line = Mapping[str, Any]

Fact = tuple[str, str]  # what it is, and its value


class Judgement(NamedTuple):
    """The model's answers to a split of the data, and what they are worth."""

    split: Split
    answers: Answers  # places are those in `samples.of(split)`
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
    figures: Figures  # of the first filters and of the positions
    distances: tuple[Chart, ...]  # how far heads look; none where nothing attends


class Cost(NamedTuple):
    """What the run took so far, over all its sessions."""

    seconds: float
    images: int  # shown in training, the same one again counted again
    multiply_adds: int  # of training, forward and backward
    peak_memory: int  # bytes
    parameters: int


class Story(NamedTuple):
    """One run, finished or not; without a judgement where there is none yet or where there are no classes to name."""

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
    judgement: Judgement | None
    attended: Attended | None  # of the judged model; there is none without a judgement
    cost: Cost
    notes: Sequence[str]  # whole sentences
    next: Sequence[Fact]  # what a command is for, and the command
