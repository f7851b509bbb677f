"""The oracles' libraries, each in one process for all files.

A tiny model takes a fraction of the time that the import of its library takes, so this makes it possible to run the
library on every file of every trip. Nothing else differs from `vitral.weights.oracles.oracle.run_process`.

  python -m benchmarks.round_trips.libraries timm      folders of requests, a line each, on standard input
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from vitral.weights.oracles import oracle

ORACLES = oracle.__name__.rpartition(".")[0]


class Libraries:
    """A process for each library that was asked for, ended on leaving."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes.values():
            process.communicate()  # the end of its input ends it

    def run(self, module: str, folder: Path) -> tuple[int, bytes]:
        """As `run_process` of the oracles, without the messages."""
        if module not in self.processes:
            command = [sys.executable, "-m", __name__, module]
            self.processes[module] = subprocess.Popen(
                command,
                env=oracle.environment(),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        process = self.processes[module]
        assert process.stdin is not None
        assert process.stdout is not None
        print(folder, file=process.stdin, flush=True)
        return int(process.stdout.readline() or 1), b""


def serve(module: str) -> None:
    """Answer each request as a process of the oracle would."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints
    for line in sys.stdin:
        sys.argv = [module, line.rstrip("\n")]
        runpy.run_module(f"{ORACLES}.{module}", run_name="__main__")
        print(0, file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
