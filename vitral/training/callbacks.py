"""The jobs of a run: averaging, keeping the record, watching the images it does not learn from, saving, stopping.

What a task does on images that it does not learn from, and which step did best on them.
Stopping a run from outside: the first signal asks for it after the step at hand, the second ends the process.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from vitral.tasks.task import Outcome
from vitral.training.checkpoints.state import TrainingState
from vitral.training.loop import Microbatch, mean_outcome
from vitral.training.metrics import MetricsLine, MetricsLog


class Best(NamedTuple):
    """The best evaluation so far, and how many came after it."""

    step: int
    since: int


def evaluate(learning: TrainingState, batches: Iterable[Sequence[Microbatch]]) -> Outcome:
    """The outcome of the averaged weights over all images of the batches, whatever the mode of the task was."""
    task, before = learning.task, learning.task.training
    task.eval()
    try:
        with learning.average.averaged(task), torch.no_grad():
            outcomes = [
                _doubled(task(portion.images, portion.labels, portion.rng))
                for portions in batches
                for portion in portions
            ]
    finally:
        task.train(before)
    return mean_outcome(outcomes)


def find_best(lines: Iterable[MetricsLine], split: str) -> Best:
    """The first of the best evaluations on a split: by accuracy, or by loss where a task has no accuracy."""
    evaluations = [line for line in lines if line.split == split]
    scores = [score(line) for line in evaluations]
    if not scores:
        return Best(0, 0)
    place = scores.index(max(scores))
    return Best(evaluations[place].step, len(scores) - 1 - place)


def score(line: MetricsLine) -> float:
    """The more the better; a loss that is not a number is the worst."""
    found = line.values.get("accuracy", -line.values["loss"])
    return found if found == found else float("-inf")  # noqa: PLR0124, only nan differs from itself


def _doubled(outcome: Outcome) -> Outcome:
    """In 64 bits, so that the mean over many batches does not depend on how they were cut."""
    double: dict[str, Tensor] = {name: value.double() for name, value in outcome.metrics.items()}
    return Outcome(outcome.loss.double(), outcome.images, double)


SIGHUP = getattr(signal, "SIGHUP", 0)  # not on Windows
SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, SIGHUP)))


class SignalHandler:
    """While this context lasts, an interrupt, a signal to end and a closed terminal are noted.

    Outside the main thread nothing is changed, and what `nohup` has the process ignore stays ignored.
    """

    def __init__(self, words: str = "") -> None:
        self.words = words  # for the user, once the first has come
        self.signal = 0  # the number of the first that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal:  # whoever asks twice does not want to wait
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number
        os.write(2, self.words.encode())  # not by print: the signal may have come in the midst of one


MAX_TRAIN_LINES = 5_000  # of training in the record of a run


def metrics_line(step: int, epoch_steps: int, split: str, outcome: Outcome) -> MetricsLine:
    """What the record says of an outcome after so many steps."""
    values = {"loss": outcome.loss.item(), **{name: value.item() for name, value in outcome.metrics.items()}}
    return MetricsLine(step, step / epoch_steps, split, values)


class StopTraining(Exception):
    """The run ends before its last step, on purpose, and all of it is saved."""

    def __init__(self, step: int, signal: int) -> None:
        super().__init__(f"halted after step {step}")
        self.step = step
        self.signal = signal  # 0 when it had learned enough


@dataclass(frozen=True)
class WeightAveraging:
    """Takes the weights after every step into the average."""

    learning: TrainingState

    def due(self, step: int, steps: int) -> bool:
        return True

    def run(self, step: int, outcome: Outcome) -> None:
        self.learning.average.update(self.learning.task, step - 1)


@dataclass(frozen=True)
class MetricsLogger:
    """Writes the outcome of a step into the record."""

    metrics: MetricsLog
    epoch_steps: int
    rate: Callable[[int], float]

    def due(self, step: int, steps: int) -> bool:
        every = -(-steps // MAX_TRAIN_LINES)
        return step % every == 0 or step == steps

    def run(self, step: int, outcome: Outcome) -> None:
        line = metrics_line(step, self.epoch_steps, "train", outcome)
        self.metrics.add(line._replace(values={**line.values, "rate": self.rate(step - 1)}))


@dataclass(frozen=True)
class Validation:
    """Evaluates every so many steps and at the end, and has what follows from it done."""

    every: int
    evaluate: Callable[[int], None]

    def due(self, step: int, steps: int) -> bool:
        return step % self.every == 0 or step == steps

    def run(self, step: int, outcome: Outcome) -> None:
        self.evaluate(step)


@dataclass
class Checkpointing:
    """Saves when time has come, at the last step and when asked to; then stops if that was asked.

    `asked` and `halted` are the same for all processes: which of them noticed does not matter.
    """

    seconds: float
    save: Callable[[int], None]
    asked: Callable[[int], bool]  # whether this step is worth a checkpoint of its own
    halted: Callable[[], int | None]  # the signal that stops the run, 0 when it is enough, None to go on
    together: Callable[[bool], bool]
    _saved: float = field(default_factory=time.monotonic)
    _last: bool = False

    def due(self, step: int, steps: int) -> bool:
        self._last = step == steps
        return True

    def run(self, step: int, outcome: Outcome) -> None:
        signal = self.halted()
        late = self.together(time.monotonic() - self._saved >= self.seconds)
        if late or self._last or signal is not None or self.asked(step):
            self.save(step)
            self._saved = time.monotonic()
        if signal is not None and not self._last:
            raise StopTraining(step, signal)
