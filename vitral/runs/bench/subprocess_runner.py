"""Worker processes that run one timing at a time, on request, so that several can be compared in turns."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitral.core.errors import ConfigError

IMPORT_ROOT = Path(__file__).resolve().parents[3]  # the folder that this vitral was imported from


class TimingProcess:
    """A Python module in a process of its own: for each line on its stdin it prints a line of JSON.

    The process imports the same vitral as this one. The working directory is not on its import path.
    """

    def __init__(self, name: str, command: Sequence[str], **environment: str) -> None:
        path = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment,
            start_new_session=True,  # so that Ctrl-C reaches only the parent
        )
        self._name = name

    def request(self, line: str = "go") -> None:
        """Request a timing; `result` waits for it."""
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `result` reports the exit code

    def result(self) -> Any:
        """The result of the requested timing: seconds, or whatever else the worker prints as JSON."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with exit code {self._process.wait()}")
        return json.loads(line)

    def measure(self, line: str = "go") -> Any:
        """Request a timing and wait for it."""
        self.request(line)
        return self.result()

    def close_stdin(self) -> None:
        """Close its stdin: it ends on its own unless it is in the middle of a timing."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self, patience: float = 10) -> None:
        """End the process; it is killed if it does not end in time."""
        self.close_stdin()
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


def serve_timings(prepare: Callable[[], Callable[[str], object]]) -> None:
    """The main loop of a worker: a timing for each line of stdin. A ConfigError or ImportError is the answer to all."""
    try:
        measure = prepare()
    except (ConfigError, ImportError) as error:
        reason = {"refused": str(error)}
        measure = lambda line: reason  # noqa: E731
    for line in sys.stdin:
        print(json.dumps(measure(line.strip())), flush=True)


def mean_seconds(call: Callable[[], object], least: float) -> float:
    """Mean seconds of a call, over at least `least` seconds of calls after a first one that warms up.

    If the first call takes that long, it is the only one.
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
