"""The progress of a run on stderr: a bar on a terminal, lines in a file or a pipe, or nothing.

It shows epoch, loss, accuracy, images per second and the time left.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self, TextIO, TypeVar

from vitral.training.loop import StepResult

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


Item = TypeVar("Item")
LINE_SECONDS = 10.0  # seconds between two lines in a file
BAR_WIDTH = 16  # letters
# The most important fields first: on a narrow terminal the end of the line is cut.
TERMINAL_FIELDS = ("clock", "stage", "epoch", "loss", "accuracy", "left", "verdict", "speed")
FILE_FIELDS = ("clock", "stage", "epoch", "step", "loss", "accuracy", "speed", "left")


class Display:
    """Shows nothing; the interface of the displays."""

    erase_line = ""  # what to write first so that a message stands on a line of its own

    def open(self, start: int, steps: int) -> None:
        """Start before step `start` of `steps`; no effect if it is open."""

    def show(self, step: int, fields: Mapping[str, str]) -> None:
        """Show the progress, if an update is due."""

    def print(self, parts: Sequence[str]) -> None:
        """Show a line in any case."""

    def close(self) -> None:
        """Finish, so that others can write."""


def create_display(quiet: bool) -> Display:
    """The display that suits stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        return Display()
    return BarDisplay() if console.is_terminal and not console.is_dumb_terminal else LineDisplay(sys.stderr)


class LineDisplay(Display):
    """Prints a line at the first step, the last step, and every few seconds."""

    def __init__(self, stream: TextIO, rhythm: float = LINE_SECONDS) -> None:
        self.stream, self.rhythm = stream, rhythm
        self._steps = 0
        self._printed = -rhythm

    def open(self, start: int, steps: int) -> None:
        self._steps = steps

    def show(self, step: int, fields: Mapping[str, str]) -> None:
        if step == self._steps or time.monotonic() - self._printed >= self.rhythm:
            self._printed = time.monotonic()
            self.print([fields[name] for name in FILE_FIELDS if name in fields])

    def print(self, parts: Sequence[str]) -> None:
        print("  ".join(parts), file=self.stream, flush=True)


class BarDisplay(Display):
    """A progress bar at the bottom of the terminal; messages are printed above it, and it is removed at the end.

    It is not drawn by a thread: a process that is forked while a thread draws may hang.
    """

    erase_line = "\r\x1b[2K"  # the bar, which is drawn again below

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def open(self, start: int, steps: int) -> None:
        if self._bar is not None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        words = TextColumn("{task.description}", markup=False)
        self._bar = Progress(
            BarColumn(bar_width=BAR_WIDTH), words, console=Console(stderr=True), auto_refresh=False, transient=True
        )
        self._bar.add_task("starting", total=steps, completed=start)
        plain = sys.stderr
        self._bar.start()  # replaces sys.stderr, which loggers still refer to
        for name in ("", "vitral"):
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is plain:
                    handler.setStream(sys.stderr)
                    self._streams.append((handler, plain))
        self._bar.refresh()

    def show(self, step: int, fields: Mapping[str, str]) -> None:
        assert self._bar is not None
        parts = [fields[name] for name in TERMINAL_FIELDS if name in fields]
        line = fit_width(parts, self._bar.console.width - BAR_WIDTH - 2)
        self._bar.update(self._bar.task_ids[0], completed=step, description=line, refresh=True)

    def print(self, parts: Sequence[str]) -> None:
        from rich.text import Text

        assert self._bar is not None
        self._bar.console.print(Text("  ".join(parts)), soft_wrap=True)

    def close(self) -> None:
        if self._bar is None:
            return
        self._bar.stop()
        self._bar = None
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()


def fit_width(parts: Sequence[str], width: int) -> str:
    """Join as many parts as fit, from the first."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line


REDRAW_SECONDS = 0.25  # seconds between two updates; each waits for the device
SMOOTHING = 10  # updates that a smoothed value averages over
WINDOW = 20  # updates over which the speed is measured


@dataclass(frozen=True)
class ProgressSpan:
    """The steps of a session, from `start` up to `steps`."""

    start: int
    steps: int
    steps_per_epoch: int
    batch_size: int  # of all processes together

    @property
    def total(self) -> int:
        """The length of the bar."""
        return self.steps

    def done(self, step: int) -> int:
        """The part of the bar that is done."""
        return step

    def format_step(self, step: int) -> str:
        """`step 30/100`."""
        return f"step {step}/{self.steps}"

    def format_clock(self) -> str:
        """The time of a run with a time limit."""
        return ""

    def seconds_left(self, step: int, step_seconds: float) -> float:
        """An estimate of the seconds to the end; 0 if unknown."""
        return step_seconds * (self.steps - step)

    def format_epoch(self, step: int) -> str:
        """`epoch 3/20`: the epoch that a step ended or was in."""
        return f"epoch {-(-step // self.steps_per_epoch)}/{-(-self.steps // self.steps_per_epoch)}"

    def format_exact_epoch(self, step: int) -> str:
        """`epoch  2.5/20`: the epochs after a step, as wide as the last."""
        done, last = (f"{round(each / self.steps_per_epoch, 2):g}" for each in (step, self.steps))
        return f"epoch {done:>{len(last)}}/{last}"


@dataclass(frozen=True)
class TimedSpan(ProgressSpan):
    """The steps of a session with a time limit: the bar shows the seconds."""

    limit: float
    spent: Callable[[], float]  # seconds since the start of the run

    @property
    def total(self) -> int:
        return round(self.limit)

    def done(self, step: int) -> int:
        return min(self.total - 1, round(self.spent()))  # the end is not known by the clock

    def format_epoch(self, step: int) -> str:
        return f"epoch {step / self.steps_per_epoch:.3g}"

    def format_exact_epoch(self, step: int) -> str:
        return f"epoch {step / self.steps_per_epoch:<5.3g}"

    def format_step(self, step: int) -> str:
        return f"step {step}"

    def format_clock(self) -> str:
        return f"{round(self.spent())} s of {round(self.limit)} s"

    def seconds_left(self, step: int, step_seconds: float) -> float:
        return 0.0


class Sample(NamedTuple):
    """A step and the time when it was shown."""

    step: int
    seconds: float


class Progress:
    """The callback that shows the progress of training; also the context in which it is shown."""

    def __init__(self, span: ProgressSpan, display: Display) -> None:
        self.span, self.display = span, display
        self._means: dict[str, float] = {}
        self._verdict = ""
        self._updates = 0
        self._speed = 0.0  # images per second; 0 if unknown
        self._first = self._last = Sample(span.start, 0.0)
        self._window: deque[Sample] = deque(maxlen=WINDOW)

    def __enter__(self) -> Self:
        self.display.open(self.span.done(self.span.start), self.span.total)
        return self

    def __exit__(self, *error: object) -> None:
        self.display.close()

    def due(self, step: int, steps: int) -> bool:
        return not self._updates or step == steps or time.monotonic() - self._last.seconds >= REDRAW_SECONDS

    def run(self, step: int, result: StepResult) -> None:
        self._last = Sample(step, time.monotonic())
        if not self._updates:
            self._first = self._last
        self._window.append(self._last)
        oldest = self._window[0]
        if self._last.seconds > oldest.seconds:
            self._speed = self.span.batch_size * (step - oldest.step) / (self._last.seconds - oldest.seconds)
        self._updates += 1
        share = 1 / min(self._updates, SMOOTHING)  # means of the first values, then exponential moving averages
        for name, value in result.read().metrics.items():
            before = self._means.get(name, value)
            self._means[name] = before + share * (value - before)
        self.display.show(self.span.done(step), self._fields(step))

    def show_evaluation(self, step: int, split: str, values: Mapping[str, float], is_best: bool = False) -> None:
        """Show the metrics of an evaluation, and whether it is the best so far. Its time does not count for the speed.

        The lines of all evaluations are aligned.
        """
        self._window.clear()
        shown = {name: values[name] for name in ("loss", "accuracy", "knn_accuracy") if name in values}
        for name, value in shown.items():  # the last one: accuracy, if there is one
            self._verdict = f"{split} {format_metric(name, value).removeprefix('accuracy ')}"
        columns = [self.span.format_exact_epoch(step)]
        if "loss" in self._means:
            columns.append(f"train {format_metric('loss', self._means['loss'], aligned=True)}")
        columns += [f"{split} {format_metric(name, value, aligned=True)}" for name, value in shown.items()]
        self.display.print([*columns, *(["best so far"] if is_best else [])])

    def _fields(self, step: int) -> dict[str, str]:
        """The fields of a line that are known."""
        done = step - self._first.step
        seconds = (self._last.seconds - self._first.seconds) / done if done else 0.0  # of a step, with evaluations
        left = self.span.seconds_left(step, seconds)
        parts = {
            "clock": self.span.format_clock(),
            "epoch": self.span.format_epoch(step),
            "step": self.span.format_step(step),
            "loss": format_metric("loss", self._means["loss"]),
            "accuracy": format_metric("accuracy", self._means["accuracy"]) if "accuracy" in self._means else "",
            "speed": f"{self._speed:,.0f} images/s" if self._speed else "",
            "left": f"{format_duration(left)} left" if left else "",
            "verdict": self._verdict,
        }
        return {name: words for name, words in parts.items() if words}


class SetupProgress:
    """The progress before the first step of a run with a time limit: the time, and what is being done.

    Without a limit nothing is shown.
    """

    def __init__(self, display: Display, started: float, limit: float = 0.0, earlier: float = 0.0) -> None:
        self.display, self.limit = display, limit
        self._zero = started - earlier  # by the clock of `time.monotonic`; what earlier sessions took counts, too
        self._stage = ""

    def spent(self) -> float:
        """The seconds of the run so far."""
        return time.monotonic() - self._zero

    def begin(self, stage: str) -> None:
        """Show what is being done from now on."""
        self._stage = stage
        self.tick()

    def tick(self) -> None:
        """Show the time."""
        done, total = round(self.spent()), round(self.limit)
        if total:
            self.display.open(done, total)
            self.display.show(min(done, total - 1), {"clock": f"{done} s of {total} s", "stage": self._stage})

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with the time shown after each."""
        for item in items:
            yield item
            self.tick()


def format_metric(name: str, value: float, aligned: bool = False) -> str:
    """`loss 0.512`, `accuracy 81.3%`; aligned, usual values are equally wide."""
    if name in {"accuracy", "knn_accuracy"}:
        return f"{name.replace('knn_', 'k-NN ')} {100 * value:{'4.1f' if aligned else '.1f'}}%"
    return f"{name} {value:.3f}" if value >= 0.01 else f"{name} {value:.1e}"


def format_duration(seconds: float) -> str:
    """`45 s`, `6 min`, `1 h 20 min`, `2 d 3 h`: the two greatest units that matter."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")
    return f"{hours // 24} d {hours % 24} h".removesuffix(" 0 h")
