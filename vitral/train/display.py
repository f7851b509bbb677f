"""Where progress is shown: a bar on a terminal, lines in a file or a pipe, or nowhere."""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

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
