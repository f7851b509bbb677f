"""`python -m benchmarks.training_start`: seconds from the start of `vitral train sample` to the end of its first step.

What importing torch alone takes is subtracted. On the wall, and in seconds of the CPU for where other work is running.
"""

import resource
import subprocess
import sys
import time
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.__main__ import machine

REPEATS, GOAL = 5, 1.5


class Seconds(NamedTuple):
    """How long a process has run."""

    wall: float
    cpu: float


def first_step() -> Seconds:
    """Seconds to the first line of progress, which is printed at the first step."""
    with TemporaryDirectory() as home:
        return seconds_to("epoch", "-m", "vitral", "train", "sample", "--out", f"{home}/run")


def torch_alone() -> Seconds:
    """Seconds to where torch is imported."""
    return seconds_to("done", "-c", "import sys, torch; print('done', file=sys.stderr)")


def seconds_to(beginning: str, *words: str) -> Seconds:
    """Seconds from the start of a Python to a line on its stderr that begins so; it is ended there."""
    started, before = time.perf_counter(), children_seconds()
    wall = 0.0
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        for line in process.stderr:
            if line.startswith(beginning):
                wall = time.perf_counter() - started
                break
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    if wall:
        return Seconds(wall, children_seconds() - before)
    raise RuntimeError(f"{' '.join(words)} ended with exit code {process.returncode} before {beginning!r}")


def children_seconds() -> float:
    """Seconds of the CPU of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(repeats: int = REPEATS) -> str:
    """Both, in turn."""
    first_step()  # from here on the files of both are in the memory of the machine
    pairs = [(first_step(), torch_alone()) for _ in range(repeats)]
    lines = ["start to first step of `vitral train sample`:"]
    for clock in Seconds._fields:
        ours, torch = (median(getattr(each, clock) for each in times) for times in zip(*pairs, strict=True))
        verdict = "met" if ours - torch < GOAL else "NOT met"
        lines.append(
            f"  {clock}: {ours - torch:.2f} s beyond importing torch ({ours:.2f} and {torch:.2f} s); "
            f"goal: under {GOAL:g} s: {verdict}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(machine())
    print(measure())
