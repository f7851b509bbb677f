"""The callbacks of a run: weight averaging, metrics, validation, checkpoints; and stopping a run by a signal.

The first signal stops the run after a step, the second ends the process.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from vitral.core.errors import VitralError
from vitral.models.hooks import eval_mode
from vitral.tasks.task import CollapseSign, Outcome
from vitral.training.checkpoints.state import TrainingState
from vitral.training.loop import SIGHUP, STOP_SIGNALS, Microbatch, Signals, StepResult, mean_outcome
from vitral.training.metrics import MetricsLine, MetricsLog

MAX_TRAIN_LINES = 5_000  # of training in the metrics of a run


class Best(NamedTuple):
    """The step of the best evaluation so far, and the number of evaluations since."""

    step: int
    evaluations_since: int


def evaluate(
    state: TrainingState, batches: Iterable[Sequence[Microbatch]], passed_to: nn.Module | None = None
) -> Outcome:
    """Evaluate the averaged weights on all images of the batches; the mode of the task is restored.

    The batches are passed to the task, or to another module with its weights.
    """
    task = passed_to or state.task
    with eval_mode(task), state.average.applied_to(state.task), torch.no_grad():
        outcomes = [
            _to_double(task(microbatch.images, microbatch.labels, microbatch.rng))
            for batch in batches
            for microbatch in batch
        ]
    return mean_outcome(outcomes)


def find_best(lines: Iterable[MetricsLine], split: str, by: str = "accuracy") -> Best:
    """The first of the best evaluations on a split, by accuracy or by loss; by loss if there is no accuracy.

    By `last`, each is better than those before it.
    """
    evaluations = [line for line in lines if line.split == split]
    if not evaluations:
        return Best(0, 0)
    if by == "last":
        return Best(evaluations[-1].step, 0)
    best = max(evaluations, key=lambda line: score(line, by))  # of equals, max takes the first
    return Best(best.step, len(evaluations) - 1 - evaluations.index(best))


def score(line: MetricsLine, by: str) -> float:
    """The score of an evaluation, higher is better; NaN is the worst."""
    loss = line.values["loss"]
    if by == "last":
        return float(line.step)
    value = -loss if by == "loss" else line.values.get(by, -loss)
    return value if value == value else float("-inf")  # noqa: PLR0124, only nan differs from itself


def _to_double(outcome: Outcome) -> Outcome:
    """In float64, so that the mean over many batches does not depend on the batch size."""
    double: dict[str, Tensor] = {name: value.double() for name, value in outcome.metrics.items()}
    return Outcome(outcome.loss.double(), outcome.images, double)


def metrics_line(step: int, steps_per_epoch: int, split: str, outcome: Outcome) -> MetricsLine:
    """The line of an evaluation after `step` steps."""
    values = {name: value.item() for name, value in {"loss": outcome.loss, **outcome.metrics}.items()}
    return MetricsLine(step, step / steps_per_epoch, split, values)


class SignalHandler:
    """Context that records SIGINT, SIGTERM and SIGHUP instead of ending the process.

    Outside the main thread nothing is changed. A SIGHUP that is ignored, as under `nohup`, stays ignored.
    """

    def __init__(self, message: str = "") -> None:
        self.message = message  # printed when the first signal arrives
        self.signal = 0  # number of the first signal, 0 for none
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handled = [
                number for number in STOP_SIGNALS if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            ]
            self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def request_stop(self) -> None:
        """Stop the run as SIGTERM does."""
        self.signal = self.signal or signal.SIGTERM

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:  # the second one does not wait
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number
        os.write(2, self.message.encode())  # not print: the signal may have interrupted one


class StopTraining(Exception):
    """The run ends before its last step, on purpose, and has been saved."""

    def __init__(self, step: int, signal: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step
        self.signal = signal  # 0 for early stopping


@dataclass(frozen=True)
class WeightAveraging:
    """Adds the weights after every step to the average."""

    state: TrainingState

    def due(self, step: int, steps: int) -> bool:
        self.state.average.steps = steps  # a time limit changes it
        return True

    def run(self, step: int, result: StepResult) -> None:
        self.state.average.update(self.state.task, step - 1)


def is_logged(step: int, steps: int) -> bool:
    """Whether the metrics of a step are written."""
    return step % -(-steps // MAX_TRAIN_LINES) == 0 or step == steps


@dataclass(frozen=True)
class MetricsLogger:
    """Logs the training metrics. A line is written when the next one is there, so that no step waits for it."""

    metrics: MetricsLog
    steps_per_epoch: int
    lr: Callable[[int], float]

    def due(self, step: int, steps: int) -> bool:
        return is_logged(step, steps)

    def run(self, step: int, result: StepResult) -> None:
        def line() -> MetricsLine:
            values = {**result.read().metrics, "rate": self.lr(step - 1)}
            return MetricsLine(step, step / self.steps_per_epoch, "train", values)

        self.metrics.add_later(line)


WINDOW = 10, 100  # steps at least and at most that must show a collapse, a quarter of an epoch


class Collapsed(VitralError):
    """Outputs that no longer depend on the image. Nothing is lost: the newest checkpoint is that of before."""

    def __init__(self, sign: CollapseSign, value: float, step: int, steps: int) -> None:
        message = f"{sign.metric} is {value:.4g}, {sign.side} {sign.limit:g}, for {steps} logged steps: a collapse"
        super().__init__(message, code="run.collapsed", where=f"step {step}", hint=sign.hint)
        self.step = step


@dataclass
class CollapseDetector:
    """Stops a run whose metrics show a collapse for a quarter of an epoch. It reads the result of the line before."""

    signs: Sequence[CollapseSign]
    steps_per_epoch: int
    _previous: StepResult | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    def due(self, step: int, steps: int) -> bool:
        return is_logged(step, steps)

    def run(self, step: int, result: StepResult) -> None:
        previous, self._previous = self._previous, result
        if previous is None:
            return
        metrics, (least, most) = previous.read().metrics, WINDOW
        for sign in self.signs:
            count = self._counts.get(sign.metric, 0) + 1 if sign.shows(metrics[sign.metric]) else 0
            self._counts[sign.metric] = count
            if count >= min(max(self.steps_per_epoch // 4, least), most):
                raise Collapsed(sign, metrics[sign.metric], previous.step, count)


@dataclass(frozen=True)
class Validation:
    """Evaluates every `every` steps and at the end."""

    every: int
    evaluate: Callable[[int], None]

    def due(self, step: int, steps: int) -> bool:
        return step % self.every == 0 or step == steps

    def run(self, step: int, result: StepResult) -> None:
        result.read()  # weights after a loss that is not finite are not evaluated
        self.evaluate(step)


@dataclass
class Checkpointing:
    """Saves at regular times, at the last step, at the best one and on a signal; then stops if the run is to stop.

    Several processes agree by the signals in the result of the step before, so all save and stop after the same step.
    """

    seconds: float  # between two checkpoints; 0 saves after every step
    save: Callable[[int], None]
    is_best: Callable[[int], bool]
    stop_early: Callable[[], bool]  # the same in all processes
    handler: SignalHandler
    several: bool = True  # processes; a single one need not wait for the others
    _saved: float = field(default_factory=time.monotonic)
    _saved_step: int = 0
    _previous: StepResult | None = None
    _last: bool = False

    def signals(self) -> Signals:
        """What this process asks for, for the collective of a step."""
        return Signals(self.handler.signal, time.monotonic() - self._saved >= self.seconds)

    def due(self, step: int, steps: int) -> bool:
        self._last = step == steps
        return True

    def run(self, step: int, result: StepResult) -> None:
        previous, self._previous = self._previous, result
        if self.several:
            agreed = previous.read().signals if previous is not None else Signals()
            # A request that was made before the newest checkpoint has been met by it.
            late = agreed.save and previous is not None and previous.step >= self._saved_step
        else:
            agreed = self.signals()
            late = agreed.save
        stop = bool(agreed.stop) or self.stop_early()
        if not self.seconds or late or stop or self._last or self.is_best(step):
            result.read()  # weights after a loss that is not finite are not saved
            self.save(step)
            self._saved, self._saved_step = time.monotonic(), step
        if stop and not self._last:
            raise StopTraining(step, agreed.stop)
