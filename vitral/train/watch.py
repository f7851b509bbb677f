"""What a task does on images that it does not learn from, and which step did best on them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.tasks.task import Outcome
from vitral.train.feed import Portion
from vitral.train.loop import gathered
from vitral.train.metrics import Line
from vitral.train.state import Learning


class Best(NamedTuple):
    """The best evaluation so far, and how many came after it."""

    step: int
    since: int


def watched(learning: Learning, batches: Iterable[Sequence[Portion]]) -> Outcome:
    """The outcome of the averaged weights over all images of the batches, whatever the mode of the task was."""
    task, before = learning.task, learning.task.training
    task.eval()
    try:
        with learning.average.averaged(task), torch.no_grad():
            outcomes = [
                _doubled(task(portion.images, portion.labels, portion.dice))
                for portions in batches
                for portion in portions
            ]
    finally:
        task.train(before)
    return gathered(outcomes)


def best_of(lines: Iterable[Line], split: str) -> Best:
    """The first of the best evaluations on a split: by accuracy, or by loss where a task has no accuracy."""
    evaluations = [line for line in lines if line.split == split]
    scores = [score(line) for line in evaluations]
    if not scores:
        return Best(0, 0)
    place = scores.index(max(scores))
    return Best(evaluations[place].step, len(scores) - 1 - place)


def score(line: Line) -> float:
    """The more the better; a loss that is not a number is the worst."""
    found = line.values.get("accuracy", -line.values["loss"])
    return found if found == found else float("-inf")  # noqa: PLR0124, only nan differs from itself


def _doubled(outcome: Outcome) -> Outcome:
    """In 64 bits, so that the mean over many batches does not depend on how they were cut."""
    double: dict[str, Tensor] = {name: value.double() for name, value in outcome.metrics.items()}
    return Outcome(outcome.loss.double(), outcome.images, double)
