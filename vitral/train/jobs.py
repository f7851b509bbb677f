"""The jobs of a run: averaging, keeping the record, watching the images it does not learn from, saving, stopping."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vitral.tasks.task import Outcome
from vitral.train.metrics import Line, Metrics
from vitral.train.state import Learning

MOST_LINES = 5_000  # of training in the record of a run


def line_of(step: int, epoch_steps: int, split: str, outcome: Outcome) -> Line:
    """What the record says of an outcome after so many steps."""
    values = {"loss": outcome.loss.item(), **{name: value.item() for name, value in outcome.metrics.items()}}
    return Line(step, step / epoch_steps, split, values)


class Halt(Exception):
    """The run ends before its last step, on purpose, and all of it is saved."""

    def __init__(self, step: int, signal: int) -> None:
        super().__init__(f"halted after step {step}")
        self.step = step
        self.signal = signal  # 0 when it had learnt enough


@dataclass(frozen=True)
class Averaging:
    """Takes the weights after every step into the average."""

    learning: Learning

    def due(self, step: int, steps: int) -> bool:
        return True

    def run(self, step: int, outcome: Outcome) -> None:
        self.learning.average.update(self.learning.task, step - 1)


@dataclass(frozen=True)
class Recording:
    """Writes the outcome of a step into the record."""

    metrics: Metrics
    epoch_steps: int
    rate: Callable[[int], float]

    def due(self, step: int, steps: int) -> bool:
        every = -(-steps // MOST_LINES)
        return step % every == 0 or step == steps

    def run(self, step: int, outcome: Outcome) -> None:
        line = line_of(step, self.epoch_steps, "train", outcome)
        self.metrics.add(line._replace(values={**line.values, "rate": self.rate(step - 1)}))


@dataclass(frozen=True)
class Watching:
    """Evaluates every so many steps and at the end, and has what follows from it done."""

    every: int
    evaluate: Callable[[int], None]

    def due(self, step: int, steps: int) -> bool:
        return step % self.every == 0 or step == steps

    def run(self, step: int, outcome: Outcome) -> None:
        self.evaluate(step)


@dataclass
class Saving:
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
            raise Halt(step, signal)
