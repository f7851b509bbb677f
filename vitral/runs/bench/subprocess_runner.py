"""Processes that work only when asked to, turn by turn, so that all of them meet the same machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from vitral.core.errors import ConfigError


class TimingProcess:
    """A Python process that takes a turn for each line on its stdin, and prints what it found as a line of JSON."""

    def __init__(self, name: str, words: Sequence[str], **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            start_new_session=True,  # so that an interrupt at the terminal is left to the process that asks
        )
        self._name = name

    def ask(self, words: str = "go") -> None:
        """Have it take a turn; `answer` waits for the end of that."""
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # said by who waits for the answer, with its exit code

    def answer(self) -> Any:
        """What it found in the turn it was asked for: the seconds that it took, or what else it prints as JSON."""
        assert self._process.stdout
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._name} ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def turn(self, words: str = "go") -> Any:
        """Ask, and wait for the answer."""
        self.ask(words)
        return self.answer()

    def dismiss(self) -> None:
        """Ask for nothing more: it ends by itself if it is between two turns."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self, patience: float = 10) -> None:
        """End the process; it leaves no files behind if it is between two turns, and is killed if it is not."""
        self.dismiss()
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


def serve_timings(prepare: Callable[[], Callable[[str], object]]) -> None:
    """The other side: prepare, then a turn for each line. What is refused, or not installed, is the answer to all."""
    try:
        turn = prepare()
    except (ConfigError, ImportError) as error:
        reason = {"refused": str(error)}
        turn = lambda words: reason  # noqa: E731
    for line in sys.stdin:
        print(json.dumps(turn(line.strip())), flush=True)


def mean_seconds(call: Callable[[], object], least: float) -> float:
    """Seconds of a call: the mean over as many as fill so many seconds, after a first one, which wakes the process up.

    Where the first one takes that long already, it is the only one.
    """
    first = _seconds(call)
    if first >= least:
        return first
    calls, spent = 0, 0.0
    while spent < least:
        spent += _seconds(call)
        calls += 1
    return spent / calls


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
