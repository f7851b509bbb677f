"""The training loop. A task gives a loss and metrics; what differs between runs is passed in.

Nothing in a step waits for the device: batches are copied from pinned memory, and the loss, the metrics and the
signals of all processes are one small tensor per step, which is summed over processes in one collective, copied to the
host asynchronously and read one step later. A loss that is not finite is therefore reported one step late; validation
and checkpoints read the step at hand first.  B images, C channels, H rows, W columns.
"""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitral.core.errors import VitralError
from vitral.core.rng import BatchRng
from vitral.data.loading.loader import Batch, BatchImages, Loader
from vitral.data.loading.sampler import SamplingPlan
from vitral.data.transforms.preprocessing import Normalize
from vitral.tasks.task import Outcome, Task
from vitral.training.clip import PerParameterClip, apply_clip
from vitral.training.optimizers import set_lr, set_weight_decay
from vitral.training.precision import Precision


class Microbatch(NamedTuple):
    """The part of a batch that the task is given at once."""

    images: Any  # normalized: (B, C, H, W), or a tuple of (B, V, C, H, W) for several views of each image
    labels: Tensor  # (B,)
    weight: float  # its fraction of the images of the batch of all processes
    rng: np.random.Generator  # for random draws of the task
    seed: int  # for random draws of the model


class MicrobatchConfig(NamedTuple):
    """How a batch is prepared: normalization, number of microbatches, device."""

    normalize: Normalize
    num_microbatches: int
    device: torch.device


def microbatches(loader: Loader, start: int, stop: int, config: MicrobatchConfig) -> Generator[Sequence[Microbatch]]:
    """Yield the microbatches of each step."""
    for step, batch in enumerate(loader.batches(start, stop), start):
        yield split_batch(batch, step, loader.plan, config)


def split_batch(batch: Batch, step: int, plan: SamplingPlan, config: MicrobatchConfig) -> list[Microbatch]:
    """Split this process's part of a batch into microbatches of nearly equal size, each with its own generator."""
    total = plan.num_images(step)
    count = config.num_microbatches
    places = np.array_split(plan.places(step), count)  # which are as long as the parts of `tensor_split`
    pieces = zip(split_images(batch.images, count), batch.labels.tensor_split(count), places, strict=True)

    def prepare(group: Tensor) -> Tensor:
        return config.normalize.prepare(to_device(group, config.device))

    result = []
    for number, (images, labels, rows) in enumerate(pieces, plan.world.rank * count):
        rng = BatchRng(plan.seed, step, number, rows)
        seed = int(rng.integers(2**63))
        normalized = prepare(images) if isinstance(images, Tensor) else tuple(map(prepare, images))
        result.append(Microbatch(normalized, to_device(labels, config.device), len(labels) / total, rng, seed))
    return result


def split_images(images: BatchImages, count: int) -> Iterable[BatchImages]:
    """BatchImages in so many parts of nearly equal size; of several views, each part has all of its images."""
    if isinstance(images, Tensor):
        return images.tensor_split(count)
    return zip(*(group.tensor_split(count) for group in images), strict=True)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device; to a GPU asynchronously, from pinned memory."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


SIGHUP = getattr(signal, "SIGHUP", 0)  # not on Windows
STOP_SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, SIGHUP)))


class Signals(NamedTuple):
    """What a process asks of all processes."""

    stop: int = 0  # number of the signal received, 0 for none
    save: bool = False  # whether a checkpoint is due


class StepValues(NamedTuple):
    """The loss, the metrics and the signals of a step on the host, over all processes."""

    metrics: dict[str, float]  # with the loss first
    images: int
    signals: Signals


class StepResult:
    """What a step computed. It stays on the device until it is read."""

    def __init__(self, step: int, outcome: Outcome, signals: Signals, communicator: "Communicator") -> None:
        self.step = step
        self.names = ("loss", *outcome.metrics)
        device = outcome.loss.device
        dtype = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
        means = torch.stack([value.to(dtype) for value in (outcome.loss, *outcome.metrics.values())])
        extra = [outcome.images, *(signals.stop == number for number in STOP_SIGNALS), signals.save]
        tail = to_device(torch.tensor(extra, dtype=dtype), device)
        sums = communicator.sum(torch.cat([means * outcome.images, tail]))
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._host = sums if self._copied is None else sums.to("cpu", non_blocking=True)  # pinned
        if self._copied is not None:
            self._copied.record()

    def read(self) -> StepValues:
        """Wait for the values; raise `Diverged` if the loss is not finite."""
        if self._copied is not None:
            self._copied.synchronize()
        sums = self._host.tolist()
        count = len(self.names)
        images, *stops, save = sums[count:]
        means = (float(np.float32(total / max(images, 1))) for total in sums[:count])
        metrics = dict(zip(self.names, means, strict=True))
        if not isfinite(metrics["loss"]):
            raise Diverged(f"the loss of step {self.step} is {metrics['loss']}", self.step)
        stop = max((number for number, votes in zip(STOP_SIGNALS, stops, strict=True) if votes), default=0)
        return StepValues(metrics, int(images), Signals(stop, bool(save)))


class Callback(Protocol):
    """Something that is done after a step and cannot alter it: averaging, logging, validation, checkpoints."""

    def due(self, step: int, steps: int) -> bool:
        """Whether to run after `step` of `steps` steps."""

    def run(self, step: int, result: StepResult) -> None:
        """Run after `step` steps, the last of which had this result. Reading the result waits for the device."""


class Communicator:
    """The processes that take every step together: by default, a single one."""

    def gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """Context of the passes of a microbatch; in that of the last one, gradients are summed over processes."""
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return values


class StepHooks:
    """What a task has to do in a step beside the loss; nothing by default."""

    def begin_step(self, step: int) -> None:
        """Called before a step: sets what the task has scheduled."""

    def filter_gradients(self) -> None:
        """Called once the gradients of a step are complete."""

    def end_step(self, step: int) -> None:
        """Called after the optimizer has taken a step, before the callbacks."""


class TaskHooks(StepHooks):
    """The methods of a task, with the fraction of the run that is done at a step."""

    def __init__(self, task: Task, fraction: Callable[[int], float]) -> None:
        self.task, self.fraction = task, fraction

    def begin_step(self, step: int) -> None:
        self.task.begin_step(self.fraction(step))

    def filter_gradients(self) -> None:
        self.task.filter_gradients()

    def end_step(self, step: int) -> None:
        self.task.end_step(self.fraction(step))


class UpdateRule(NamedTuple):
    """How gradients become steps: the optimizer, its learning rate at each step, the largest gradient norm."""

    optimizer: Optimizer
    lr: Callable[[int], float]
    clip: float | PerParameterClip
    precision: Precision
    communicator: Communicator = Communicator()
    hooks: StepHooks = StepHooks()
    weight_decay: Callable[[int], float] | None = None  # of the groups that decay; None leaves it as it is


class Diverged(VitralError):
    """A loss that is infinite or not a number. The step after it may have been taken; nothing was saved since."""

    def __init__(self, message: str, step: int) -> None:
        hint = "use a lower learning rate, a longer warmup or a smaller clip"
        super().__init__(message, code="run.diverged", where=f"step {step}", hint=hint)
        self.step = step


def train(
    task: nn.Module,
    batches: Iterator[Sequence[Microbatch]],
    rule: UpdateRule,
    start: int,
    steps: int | Callable[[int], int],
    callbacks: Sequence[Callback],
    signals: Callable[[], Signals] = Signals,
) -> None:
    """Take the steps from `start` up to `steps`, and run the callbacks that are due after each.

    `steps` is a function of the steps taken if it may change on the way. The task is a `Task`, or a wrapper of one
    (DDP, a compiled module) that is called like it.
    """
    optimizer, scaler = rule.optimizer, rule.precision.scaler
    weights = list(task.parameters())  # a walk through all modules takes 3% of a small model's step
    previous: StepResult | None = None
    task.train()
    step = start
    while step < _planned(steps, step):
        set_lr(optimizer, rule.lr(step))
        if rule.weight_decay is not None:
            set_weight_decay(optimizer, rule.weight_decay(step))
        rule.hooks.begin_step(step)
        outcome = mean_outcome(backward(task, next(batches), rule))
        result = StepResult(step, outcome, signals(), rule.communicator)
        scaler.unscale_(optimizer)
        rule.hooks.filter_gradients()
        apply_clip(weights, rule.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        rule.hooks.end_step(step)
        if previous is not None:
            previous.read()
        for callback in callbacks:
            if callback.due(step + 1, _planned(steps, step + 1)):
                callback.run(step + 1, result)
        previous = result
        step += 1
    if previous is not None:
        previous.read()


def _planned(steps: int | Callable[[int], int], step: int) -> int:
    """The number of steps as it is planned after a step."""
    return steps if isinstance(steps, int) else steps(step)


def backward(task: nn.Module, microbatches: Sequence[Microbatch], rule: UpdateRule) -> list[Outcome]:
    """Add the gradient of each microbatch to the weights, and return the outcomes."""
    outcomes = []
    for number, microbatch in enumerate(microbatches, start=1):
        seed_model(microbatch.seed, microbatch.labels.device)
        with rule.communicator.gradient_sync(last=number == len(microbatches)):
            with rule.precision.autocast():
                outcome: Outcome = task(microbatch.images, microbatch.labels, microbatch.rng)
            rule.precision.scaler.scale(outcome.loss * microbatch.weight).backward()
        outcomes.append(outcome._replace(loss=outcome.loss.detach()))
    return outcomes


def seed_model(seed: int, device: torch.device) -> None:
    """Seed the random draws of the model itself, such as dropout and drop path.

    torch.manual_seed would seed every type of device, and record the call stack for those not in use: 5% of the time
    of a small model's step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The means over all images of several outcomes, on the device."""
    images = sum(outcome.images for outcome in outcomes)
    weights = [outcome.images / max(images, 1) for outcome in outcomes]

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack([value * weight for value, weight in zip(values, weights, strict=True)]).sum()

    if len(outcomes) == 1:
        return outcomes[0]
    metrics = {name: mean([outcome.metrics[name] for outcome in outcomes]) for name in outcomes[0].metrics}
    return Outcome(mean([outcome.loss for outcome in outcomes]), images, metrics)
