"""What a person sees while a run goes on: where it stands, how well it does, how fast it is, and when it will end."""

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self

from vitral.tasks.task import Outcome
from vitral.train.display import Display

REDRAW = 0.25  # seconds between two looks at the loss; each makes a GPU wait
MEMORY = 10  # looks that a smoothed value remembers
WINDOW = 20  # looks over which the speed is taken


class Course(NamedTuple):
    """The way of a session: the steps from `start` up to `steps`, each of a batch of so many images."""

    start: int
    steps: int
    epoch_steps: int
    batch: int  # of all processes together

    def place(self, step: int) -> str:
        """`epoch 3/20`: the epoch that a step ended or was in."""
        return f"epoch {-(-step // self.epoch_steps)}/{-(-self.steps // self.epoch_steps)}"


class Look(NamedTuple):
    """When a step was looked at."""

    step: int
    seconds: float


class Progress:
    """The job that shows how training goes, inside its `with`; `evaluated` is to be told of every evaluation."""

    def __init__(self, course: Course, display: Display) -> None:
        self.course, self.display = course, display
        self._means: dict[str, float] = {}
        self._verdict = ""
        self._looks = 0
        self._speed = 0.0  # images a second of late; 0 as long as nobody knows
        self._first = self._last = Look(course.start, 0.0)
        self._window: deque[Look] = deque(maxlen=WINDOW)

    def __enter__(self) -> Self:
        self.display.open(self.course.start, self.course.steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.close()

    def due(self, step: int, steps: int) -> bool:
        return not self._looks or step == steps or time.monotonic() - self._last.seconds >= REDRAW

    def run(self, step: int, outcome: Outcome) -> None:
        self._last = Look(step, time.monotonic())
        if not self._looks:
            self._first = self._last
        self._window.append(self._last)
        self._measure_speed()
        self._looks += 1
        self._smooth({"loss": outcome.loss.item(), **{name: value.item() for name, value in outcome.metrics.items()}})
        self.display.show(step, self._words(step))

    def evaluated(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Show what an evaluation found. The time that it took does not count into the speed."""
        self._window.clear()
        found = [measure(name, value) for name, value in values.items() if name in ("loss", "accuracy")]
        self._verdict = f"{split} {found[-1].removeprefix('accuracy ')}" if found else ""
        place = [self.course.place(step), f"step {step}/{self.course.steps}"]
        self.display.note([*place, *(f"{split} {words}" for words in found)])

    def _smooth(self, values: Mapping[str, float]) -> None:
        """Means over the first looks, and from then on the older a look is the less it counts."""
        share = 1 / min(self._looks, MEMORY)
        for name, value in values.items():
            before = self._means.get(name, value)
            self._means[name] = before + share * (value - before)

    def _words(self, step: int) -> dict[str, str]:
        """The parts of a line by name, those that are known."""
        left = self._left(step)
        parts = {
            "epoch": self.course.place(step),
            "step": f"step {step}/{self.course.steps}",
            "loss": measure("loss", self._means["loss"]),
            "accuracy": measure("accuracy", self._means["accuracy"]) if "accuracy" in self._means else "",
            "speed": f"{self._speed:,.0f} images/s" if self._speed else "",
            "left": f"{duration(left)} left" if left else "",
            "verdict": self._verdict,
        }
        return {name: words for name, words in parts.items() if words}

    def _measure_speed(self) -> None:
        first, last = self._window[0], self._window[-1]
        if last.seconds > first.seconds:
            self._speed = self.course.batch * (last.step - first.step) / (last.seconds - first.seconds)

    def _left(self, step: int) -> float:
        """Seconds to the end if all goes on as it did, evaluations and all; 0 as long as nobody knows."""
        done = step - self._first.step
        return (self._last.seconds - self._first.seconds) / done * (self.course.steps - step) if done else 0.0


def measure(name: str, value: float) -> str:
    """`loss 0.512`, `accuracy 81.3 %`."""
    if name == "accuracy":
        return f"{name} {100 * value:.1f} %"
    return f"{name} {value:.3f}" if value >= 0.01 else f"{name} {value:.1e}"


def duration(seconds: float) -> str:
    """`45 s`, `6 min`, `1 h 20 min`, `2 d 3 h`: the two greatest units that matter."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return _pair(minutes // 60, "h", minutes % 60, "min")
    return _pair(hours // 24, "d", hours % 24, "h")


def _pair(great: int, unit: str, small: int, part: str) -> str:
    return f"{great} {unit} {small} {part}" if small else f"{great} {unit}"
