"""Progress on a real terminal, in a pipe, and nowhere."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from tests.processes import run_forked
from vitral.training.progress import LineDisplay, fit_width

ROOT = Path(__file__).parents[2]
RUN = """
import logging, sys
from vitral.training.progress import create_display
logging.basicConfig(format="%(message)s", stream=sys.stderr)
log = logging.getLogger("vitral")
log.setLevel(logging.INFO)
log.info("before")
shown = create_display(quiet=sys.argv[1:] == ["--quiet"])
shown.open(0, 3)
for step in (1, 2, 3):
    shown.show(step, {"epoch": f"epoch {step}/3", "step": f"step {step}/3", "loss": "loss 0.5", "speed": "9 images/s"})
    shown.print([f"noted [{step}]"])
    log.info("saved [red] %d", step)
print("to stderr", file=sys.stderr)
shown.close()
log.info("after")
"""


class Screen:
    """What a terminal shows, of the few codes that a bar needs."""

    def __init__(self) -> None:
        self.rows, self.row, self.column = [""], 0, 0
        self.states: list[list[str]] = []

    def feed(self, text: str) -> None:
        for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.", text, re.DOTALL):
            if piece == "\n":
                self.row += 1
                self.rows += [""] * (self.row == len(self.rows))
            elif piece == "\r":
                self.column = 0
            elif piece == "\x1b[2K":
                self.rows[self.row] = ""
            elif piece == "\x1b[1A":
                self.row -= 1
            elif not piece.startswith("\x1b"):
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + piece + line[self.column + 1 :]
                self.column += 1
            self.states.append([row.rstrip() for row in self.rows])


def in_a_terminal(*arguments: str, program: str = RUN, **variables: str) -> Screen:
    """The screen after the run, and every state that it was in."""
    near, far = pty.openpty()
    places = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "25", **variables}
    words = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(words, cwd=ROOT, env=places, stderr=far, stdout=far)
    os.close(far)
    screen = Screen()
    screen.feed(b"".join(pieces(near)).decode())
    os.close(near)
    assert process.wait() == 0
    return screen


def pieces(handle: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(handle, 4096)
        except OSError:  # so Linux says that the other end is closed
            return
        if not piece:
            return
        yield piece


def test_messages_pass_by_the_bar_without_tearing_it_and_nothing_of_it_is_left() -> None:
    screen = in_a_terminal()
    last = [row for row in screen.states[-1] if row]
    steps = [line for step in (1, 2, 3) for line in (f"noted [{step}]", f"saved [red] {step}")]
    assert last == ["before", *steps, "to stderr", "after"]
    seen = {row for state in screen.states for row in state}
    for step in (1, 2, 3):
        assert any(re.fullmatch(rf"\S+ epoch {step}/3  loss 0.5  9 images/s", row) for row in seen), "it was drawn"
    assert not any("━" in row and ("saved" in row or "noted" in row) for row in seen)


def test_the_message_of_a_signal_replaces_the_bar_and_stands_alone() -> None:
    message = """
import os, sys
from vitral.training.progress import create_display
shown = create_display(quiet=False)
shown.open(0, 3)
shown.show(1, {"epoch": "epoch 1/3"})
os.write(2, f"{shown.erase_line}saving\\n".encode())
shown.show(2, {"epoch": "epoch 2/3"})
shown.close()
"""
    screen = in_a_terminal(program=message)
    assert [row for row in screen.states[-1] if row] == ["saving"]
    assert any(state[-2:] == ["saving", ""] for state in screen.states)
    assert any(len(state) > 1 and state[-2] == "saving" and state[-1].endswith("epoch 2/3") for state in screen.states)


@pytest.mark.slow
def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    screen = in_a_terminal(TERM="dumb")
    assert [row for row in screen.rows if row] == ["before", *LINES, "to stderr", "after"]


LINES = [
    *("epoch 1/3  step 1/3  loss 0.5  9 images/s", "noted [1]", "saved [red] 1"),
    *("noted [2]", "saved [red] 2"),
    *("epoch 3/3  step 3/3  loss 0.5  9 images/s", "noted [3]", "saved [red] 3"),
]


def test_a_pipe_gets_lines() -> None:
    answer = run_forked(code=RUN)
    assert answer.stderr.splitlines() == ["before", *LINES, "to stderr", "after"]
    assert answer.stdout == ""


@pytest.mark.slow
def test_quiet_shows_nothing_even_on_a_terminal() -> None:
    screen = in_a_terminal("--quiet")
    assert not any(word in row for row in screen.rows for word in ("epoch", "noted", "━"))


def test_lines_come_at_the_first_and_the_last_step_and_no_more_often_than_asked() -> None:
    rare, often = StringIO(), StringIO()
    for stream, rhythm in ((rare, 60.0), (often, 0.0)):
        lines = LineDisplay(stream, rhythm)
        lines.open(4, 8)
        for step in (5, 6, 7, 8):
            lines.show(step, {"step": f"step {step}/8"})
        lines.close()
    assert rare.getvalue().split("\n") == ["step 5/8", "step 8/8", ""]
    assert often.getvalue().count("\n") == 4


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (100, "one  three  five"),
        (16, "one  three  five"),
        (15, "one  three"),
        (9, "one"),
        (3, "one"),
        (2, ""),
        (-5, ""),
    ],
)
def test_as_many_parts_are_shown_as_there_is_room_for(width: int, line: str) -> None:
    assert fit_width(["one", "three", "five"], width) == line
