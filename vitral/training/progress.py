"""What a person sees while a run goes on: where it stands, how well it does, how fast it is, and when it will end.

Where progress is shown: a bar on a terminal, lines in a file or a pipe, or nowhere.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TextIO

from vitral.tasks.task import Outcome

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


RHYTHM = 10.0  # seconds between two lines in a file
BAR = 16  # letters
# In a line on a terminal what matters most comes first, since the end is left out where it is narrow.
ON_A_TERMINAL = ("epoch", "loss", "accuracy", "left", "verdict", "speed")
IN_A_FILE = ("epoch", "step", "loss", "accuracy", "speed", "left")


class Display(Protocol):
    """Something that shows words."""

    def open(self, start: int, steps: int) -> None:
        """Begin, before the step `start` of so many."""
        ...

    def show(self, step: int, words: Mapping[str, str]) -> None:
        """Show where a run stands, if it is time to."""
        ...

    def note(self, words: Sequence[str]) -> None:
        """Show what happens rarely."""
        ...

    def close(self) -> None:
        """End, so that others may write."""
        ...


def display(quiet: bool) -> Display:
    """What suits stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        return Silence()
    return Bar() if console.is_terminal and not console.is_dumb_terminal else Lines(sys.stderr)


class Silence:
    """Shows nothing."""

    def open(self, start: int, steps: int) -> None: ...
    def show(self, step: int, words: Mapping[str, str]) -> None: ...
    def note(self, words: Sequence[str]) -> None: ...
    def close(self) -> None: ...


class Lines:
    """Prints a line at the first step, at the last, and every few seconds."""

    def __init__(self, stream: TextIO, rhythm: float = RHYTHM) -> None:
        self.stream, self.rhythm = stream, rhythm
        self._steps = 0
        self._printed = -rhythm

    def open(self, start: int, steps: int) -> None:
        self._steps = steps

    def show(self, step: int, words: Mapping[str, str]) -> None:
        if step == self._steps or time.monotonic() - self._printed >= self.rhythm:
            self._printed = time.monotonic()
            self.note([words[name] for name in IN_A_FILE if name in words])

    def note(self, words: Sequence[str]) -> None:
        print("  ".join(words), file=self.stream, flush=True)

    def close(self) -> None: ...


class Bar:
    """Draws a bar at the foot of the terminal that others' messages pass by; it is gone at the end.

    It is drawn by whoever shows something, never by a thread: a process that is forked while a thread draws may hang.
    """

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def open(self, start: int, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        words = TextColumn("{task.description}", markup=False)
        self._bar = Progress(
            BarColumn(bar_width=BAR), words, console=Console(stderr=True), auto_refresh=False, transient=True
        )
        self._bar.add_task("starting", total=steps, completed=start)
        plain = sys.stderr
        self._bar.start()  # from here on sys.stderr writes above the bar, but loggers know the one before
        for name in ("", "vitral"):
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is plain:
                    handler.setStream(sys.stderr)
                    self._streams.append((handler, plain))
        self._bar.refresh()

    def show(self, step: int, words: Mapping[str, str]) -> None:
        assert self._bar is not None
        parts = [words[name] for name in ON_A_TERMINAL if name in words]
        line = fitting(parts, self._bar.console.width - BAR - 2)
        self._bar.update(self._bar.task_ids[0], completed=step, description=line, refresh=True)

    def note(self, words: Sequence[str]) -> None:
        """The bar shows the last verdict itself."""

    def close(self) -> None:
        assert self._bar is not None
        self._bar.stop()
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()


def fitting(parts: Sequence[str], width: int) -> str:
    """As many parts side by side as there is room for, from the first."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line


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
