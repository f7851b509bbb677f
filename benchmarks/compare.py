"""Interleaved timing: one process an engine, one step of work at a time, in turns, so that noise affects all alike.

A suite is a module of this package with `CASES` and `prepare`, such as `benchmarks/model.py`.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, Protocol

from vitral.runs.bench import TimingProcess

CLOCK = "VITRAL_BENCHMARK_CLOCK"  # cpu: seconds of the CPU, by all threads of an engine, in place of those on the wall


class Case(NamedTuple):
    """Work that engines can be compared at."""

    name: str
    images: int  # that one step deals with
    goal: float  # how many times the best rival's speed is wanted
    engines: tuple[str, ...]  # ours first
    rivals: tuple[str, ...]  # the engines that the goal speaks of
    steps: int = 1  # in one turn


class Suite(Protocol):
    CASES: Sequence[Case]

    def prepare(self, engine: str, case: Case) -> Callable[[], object]:
        """Everything up to the first step; the result does one step."""
        ...


Say = Callable[[str], None]


def start_engine(suite: str, case: Case, engine: str, **environment: str) -> TimingProcess:
    """An engine in a process of its own."""
    return TimingProcess(f"{engine} at {case.name}", ["benchmarks.compare", suite, case.name, engine], **environment)


class Length(NamedTuple):
    """How long a race is. Processes are started anew for every heat: each has its own luck with memory."""

    heats: int
    rounds: int  # in each heat


def run_interleaved(suite: str, case: Case, engines: Sequence[str], length: Length, say: Say) -> dict[str, list[float]]:
    """Seconds of each turn of each engine. The first turn of a process warms it up and is not counted."""
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    for heat in range(length.heats):
        runners = {engine: start_engine(suite, case, engine) for engine in engines}
        try:
            for engine, process in runners.items():
                say(f"{case.name}: heat {heat + 1} of {length.heats}, warming up {engine}")
                process.measure()
            for number in range(length.rounds):
                say(f"{case.name}: heat {heat + 1} of {length.heats}, round {number + 1} of {length.rounds}")
                # Every other round goes backwards, so that no engine always follows the same one.
                for engine in engines if number % 2 else reversed(engines):
                    seconds[engine].append(runners[engine].measure())
        finally:
            for process in runners.values():
                process.stop()
    return seconds


class Ratio(NamedTuple):
    """How many times as fast, and the middle half of the rounds."""

    median: float
    low: float
    high: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compared round by round: what slows the machine slows both."""
    ratios = [peer / own for own, peer in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high)


def throughput(case: Case, seconds: Sequence[float]) -> float:
    """Images a second in the median turn."""
    return case.images * case.steps / statistics.median(seconds)


def best_of(seconds: Mapping[str, Sequence[float]], engines: Sequence[str]) -> str:
    return min(engines, key=lambda engine: statistics.median(seconds[engine]))


def work(suite_name: str, case_name: str, engine: str) -> None:
    """The process of an engine: prepare, then a turn for each line that comes in."""
    suite: Suite = import_module(suite_name)
    case = next(case for case in suite.CASES if case.name == case_name)
    step = suite.prepare(engine, case)
    clock = time.process_time if os.environ.get(CLOCK) == "cpu" else time.perf_counter
    for _ in sys.stdin:
        started = clock()
        for _ in range(case.steps):
            step()
        print(clock() - started, flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
