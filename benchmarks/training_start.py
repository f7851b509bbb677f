"""`python -m benchmarks.training_start`: seconds from the start of `vitral train sample` to the end of its first step.

What importing torch alone takes is subtracted.
"""

import subprocess
import sys
import time
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.__main__ import machine

REPEATS, GOAL = 5, 2.0


def first_step() -> float:
    """Seconds to the first line of progress, which is printed at the first step."""
    with TemporaryDirectory() as home:
        return seconds_to("epoch", "-m", "vitral", "train", "sample", "--out", f"{home}/run")


def torch_alone() -> float:
    """Seconds to where torch is imported."""
    return seconds_to("done", "-c", "import sys, torch; print('done', file=sys.stderr)")


def seconds_to(beginning: str, *words: str) -> float:
    """Seconds from the start of a Python to a line on its stderr that begins so; it is ended there."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        for line in process.stderr:
            if line.startswith(beginning):
                return time.perf_counter() - started
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    raise RuntimeError(f"{' '.join(words)} ended with exit code {process.returncode} before {beginning!r}")


def measure(repeats: int = REPEATS) -> str:
    """Both, in turn."""
    first_step()  # from here on the files of both are in the memory of the machine
    pairs = [(first_step(), torch_alone()) for _ in range(repeats)]
    ours, torch = (median(times) for times in zip(*pairs, strict=True))
    verdict = "met" if ours - torch < GOAL else "NOT met"
    return (
        f"start to first step of `vitral train sample`: {ours:.2f} s, of which importing torch {torch:.2f} s\n"
        f"  {ours - torch:.2f} s beyond it; goal: under {GOAL:g} s: {verdict}"
    )


if __name__ == "__main__":
    print(machine())
    print(measure())
