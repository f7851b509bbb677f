"""The loop. It does not know what is learnt: a task gives a loss, and what must differ is handed in."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from vitral.errors import VitralError
from vitral.tasks.task import Outcome, Task
from vitral.train.feed import Portion
from vitral.train.optimiser import set_rate
from vitral.train.precision import Precision


class Job(Protocol):
    """Something that is done after a step and cannot alter it: averaging, logging, evaluating, saving."""

    def due(self, step: int, steps: int) -> bool:
        """Whether it is done after so many of the steps."""
        ...

    def run(self, step: int, outcome: Outcome) -> None:
        """Do it, after so many steps, the last of which had this outcome."""
        ...


class Descent(NamedTuple):
    """How gradients become steps: the optimiser, its rate at each step, the longest gradient that is believed."""

    optimizer: Optimizer
    rate: Callable[[int], float]
    clip: float
    precision: Precision


class Diverged(VitralError):
    """A loss that is infinite or not a number. The weights are those before its step."""


def train(
    task: Task, batches: Iterator[Sequence[Portion]], descent: Descent, start: int, steps: int, jobs: Sequence[Job]
) -> None:
    """Take the steps from `start` up to `steps`, and after each do the jobs that are due."""
    optimizer, scaler = descent.optimizer, descent.precision.scaler
    task.train()
    for step in range(start, steps):
        set_rate(optimizer, descent.rate(step))
        outcome = gathered([descended(task, portion, descent.precision) for portion in next(batches)])
        refuse_divergence(step, outcome)
        scaler.unscale_(optimizer)
        clip_grad_norm_(task.parameters(), descent.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        for job in jobs:
            if job.due(step + 1, steps):
                job.run(step + 1, outcome)


def descended(task: Task, portion: Portion, precision: Precision) -> Outcome:
    """The outcome of a portion of a batch, with its share of the gradient added to what is there."""
    torch.manual_seed(portion.seed)  # what the model draws itself, for dropout and depth, is counted too
    with precision.autocast():
        outcome: Outcome = task(portion.images, portion.labels, portion.dice)
    precision.scaler.scale(outcome.loss * portion.share).backward()
    return outcome._replace(loss=outcome.loss.detach())


def gathered(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a batch that was taken in portions: means over all of its images."""
    images = sum(outcome.images for outcome in outcomes)

    def mean(values: Sequence[Tensor]) -> Tensor:
        weights = torch.tensor([outcome.images / max(images, 1) for outcome in outcomes], device=values[0].device)
        return (torch.stack(list(values)) * weights).sum()

    if len(outcomes) == 1:
        return outcomes[0]
    metrics = {name: mean([outcome.metrics[name] for outcome in outcomes]) for name in outcomes[0].metrics}
    return Outcome(mean([outcome.loss for outcome in outcomes]), images, metrics)


def refuse_divergence(step: int, outcome: Outcome) -> None:
    if not outcome.loss.isfinite():
        raise Diverged(
            f"the loss of step {step} is {outcome.loss.item()}",
            where=f"step {step}",
            remedy="lower the rate, lengthen the warm-up, or clip the gradient more",
        )
