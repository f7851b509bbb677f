"""The loop. It does not know what is learned: a task gives a loss, and what must differ is handed in.

From the loader's bytes to what a task is given, portion by portion.  B images, C channels, H rows, W columns.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from vitral.core.errors import VitralError
from vitral.core.rng import Purpose, rng_for
from vitral.data.loading.loader import Batch, Loader
from vitral.data.loading.sampler import SamplingPlan
from vitral.data.transforms.preprocessing import Normalize
from vitral.tasks.task import Outcome
from vitral.training.optimizers import set_lr
from vitral.training.precision import Precision


class Microbatch(NamedTuple):
    """As much of a batch as the task is given at a time."""

    images: Tensor  # (B, C, H, W), scaled
    labels: Tensor  # (B,)
    share: float  # of the images of the batch, which is that of all processes
    rng: np.random.Generator  # for what the task draws
    seed: int  # for what the model draws


class MicrobatchConfig(NamedTuple):
    """How batches are served: scaled, in so many portions, on this device."""

    scaling: Normalize
    portions: int
    device: torch.device


def microbatches(loader: Loader, start: int, stop: int, serving: MicrobatchConfig) -> Generator[Sequence[Microbatch]]:
    """The portions of the batch of every step, in turn."""
    for step, batch in enumerate(loader.batches(start, stop), start):
        yield split_batch(batch, step, loader.plan, serving)


def split_batch(batch: Batch, step: int, plan: SamplingPlan, serving: MicrobatchConfig) -> list[Microbatch]:
    """This process's part of a batch in portions of nearly the same size, each with a generator of its own."""
    whole = plan.images(step)
    pieces = zip(batch.images.tensor_split(serving.portions), batch.labels.tensor_split(serving.portions), strict=True)
    found = []
    for number, (images, labels) in enumerate(pieces, plan.world.rank * serving.portions):
        rng = rng_for(plan.seed, Purpose.MIXING, step, number)
        seed = int(rng.integers(2**63))
        scaled = serving.scaling.apply(images.to(serving.device))
        found.append(Microbatch(scaled, labels.to(serving.device), len(labels) / whole, rng, seed))
    return found


class Callback(Protocol):
    """Something that is done after a step and cannot alter it: averaging, logging, evaluating, saving."""

    def due(self, step: int, steps: int) -> bool:
        """Whether it is done after so many of the steps."""
        ...

    def run(self, step: int, outcome: Outcome) -> None:
        """Do it, after so many steps, the last of which had this outcome."""
        ...


class Communicator(Protocol):
    """The processes that take every step together."""

    def passing(self, last: bool) -> AbstractContextManager[None]:
        """Around the passes of a portion; with those of the last the gradients become sums over all processes."""
        ...

    def joined(self, outcome: Outcome) -> Outcome:
        """The outcome of the whole batch, from that of this process's part of it."""
        ...


class SingleProcess:
    """One process has nobody to agree with."""

    def passing(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def joined(self, outcome: Outcome) -> Outcome:
        return outcome


class UpdateRule(NamedTuple):
    """How gradients become steps: the optimizer, its rate at each step, the longest gradient that is believed."""

    optimizer: Optimizer
    rate: Callable[[int], float]
    clip: float  # maximum norm of the gradient; infinite for no clipping
    precision: Precision
    company: Communicator = SingleProcess()


class Diverged(VitralError):
    """A loss that is infinite or not a number. The weights are those before its step."""

    def __init__(self, message: str, *, step: int, where: str = "", hint: str = "") -> None:
        super().__init__(message, code="run.diverged", where=where, hint=hint)
        self.step = step


def train(
    task: nn.Module,
    batches: Iterator[Sequence[Microbatch]],
    descent: UpdateRule,
    start: int,
    steps: int,
    jobs: Sequence[Callback],
) -> None:
    """Take the steps from `start` up to `steps`, and after each do the jobs that are due.

    The task is a `Task`, or what spreads one over processes and is called like it.
    """
    optimizer, scaler = descent.optimizer, descent.precision.scaler
    weights = list(task.parameters())  # a walk through all modules is a thirtieth of a small model's step
    task.train()
    for step in range(start, steps):
        set_lr(optimizer, descent.rate(step))
        outcome = descent.company.reduce_outcome(mean_outcome(backward(task, next(batches), descent)))
        refuse_divergence(step, outcome)
        scaler.unscale_(optimizer)
        if descent.clip < math.inf:
            clip_grad_norm_(weights, descent.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        for job in jobs:
            if job.due(step + 1, steps):
                job.run(step + 1, outcome)


def backward(task: nn.Module, portions: Sequence[Microbatch], descent: UpdateRule) -> list[Outcome]:
    """The outcome of each portion of a batch, with its share of the gradient added to what is there."""
    outcomes = []
    for number, portion in enumerate(portions, start=1):
        seed_model(portion.seed, portion.images.device)
        with descent.company.passing(last=number == len(portions)):
            with descent.precision.autocast():
                outcome: Outcome = task(portion.images, portion.labels, portion.rng)
            descent.precision.scaler.scale(outcome.loss * portion.share).backward()
        outcomes.append(outcome._replace(loss=outcome.loss.detach()))
    return outcomes


def seed_model(seed: int, device: torch.device) -> None:
    """Have what the model draws itself, for dropout and depth, be counted too.

    torch.manual_seed would seed every kind of device there is, and note the whole stack of calls for those not in use:
    a twentieth of the time that a small model's step takes.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a batch that was taken in portions: means over all of its images."""
    images = sum(outcome.images for outcome in outcomes)

    def mean(values: Sequence[Tensor]) -> Tensor:
        weights = values[0].new_tensor([outcome.images / max(images, 1) for outcome in outcomes])
        return (torch.stack(list(values)) * weights).sum()

    if len(outcomes) == 1:
        return outcomes[0]
    metrics = {name: mean([outcome.metrics[name] for outcome in outcomes]) for name in outcomes[0].metrics}
    return Outcome(mean([outcome.loss for outcome in outcomes]), images, metrics)


def refuse_divergence(step: int, outcome: Outcome) -> None:
    if not outcome.loss.isfinite():
        raise Diverged(
            f"the loss of step {step} is {outcome.loss.item()}",
            step=step,
            where=f"step {step}",
            hint="lower the rate, lengthen the warm-up, or clip the gradient more",
        )
