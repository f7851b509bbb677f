"""`python -m benchmarks.training [--only TEXT] [--clock cpu]`: what training costs beyond the bare step, with its goal.

    loop        the whole loop against the bare training step, at the sample's size and at CIFAR-10's
    processes   two processes of one thread against one process of two
    start       seconds from the start of `vitral train sample` to its first step, beyond importing torch
    memory      of a run of 5,000 steps, tenth by tenth
    save        how long a save stalls a step

TEXT is one of these words, or a part of one.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks import checkpoint_stall, training_memory, training_start, training_step
from benchmarks.__main__ import machine, say
from benchmarks.compare import CLOCK, Case, Length, ratio, run_interleaved, throughput


def raced(case: Case, length: Length) -> dict[str, list[float]]:
    return run_interleaved("benchmarks.training_step", case, case.engines, length, say)


def loop(case: Case, length: Length) -> str:
    """How many times the seconds of the bare step the loop takes, with the middle half of the rounds."""
    seconds = raced(case, length)
    bare = seconds[training_step.BARE]
    most = 1 / case.goal
    lines = [f"{case.name}: bare step {throughput(case, bare):.1f} images/s"]
    for engine in case.engines:
        if engine != training_step.BARE:
            found = ratio(bare, seconds[engine])
            verdict = "met" if found.median <= most else "NOT met"
            lines.append(
                f"  {found.median:.3f} x its seconds with {engine:<11} ({found.low:.3f} to {found.high:.3f}; "
                f"{throughput(case, seconds[engine]):.1f}/s); goal: at most {most:.2f}: {verdict}"
            )
    return "\n".join(lines)


def processes(case: Case, length: Length) -> str:
    """The speed of two processes, in times that of one."""
    seconds = raced(case, length)
    two, one = case.engines
    found = ratio(seconds[two], seconds[one])
    verdict = "met" if found.median >= case.goal else "NOT met"
    speeds = (f"  {engine}: {throughput(case, seconds[engine]):.1f} images/s" for engine in case.engines)
    last = f"  {found.median:.3f} x ({found.low:.3f} to {found.high:.3f}); goal: at least {case.goal}: {verdict}"
    return "\n".join([f"{case.name}:", *speeds, last])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="measurements with this in their name")
    parser.add_argument("--heats", type=int, default=3, help="times that every process of a race is started anew")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each engine in a heat")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu, on one thread: where other work is running"
    )
    given = parser.parse_args(words)
    length = Length(given.heats, given.rounds)
    os.environ[CLOCK] = given.clock  # for the processes of a race
    if given.clock == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other would be counted
    measurements: dict[str, Callable[[], str]] = {
        "loop, sample": partial(loop, training_step.SAMPLE, length),
        "loop, cifar10": partial(loop, training_step.CIFAR, length),
        "processes": partial(processes, training_step.PROCESSES, length),
        "start": training_start.measure,
        "memory": training_memory.measure,
        "save": checkpoint_stall.measure,
    }
    print(machine(), flush=True)
    for name, measure in measurements.items():
        if given.only in name:
            print(measure(), flush=True)


if __name__ == "__main__":
    main()
