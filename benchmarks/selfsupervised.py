"""`python -m benchmarks.selfsupervised`: what a step without labels costs, with its goals.

    MAE       a step with the authors' decoder against one of supervised training, and by counted multiply-adds
    DINO      images a second against lightly's parts with timm's ViT of the same shape, and with ours
    MoCo v3   the same

Engines take turns in processes of their own. The peers need the Python of `make bench`; a peer that is missing is left
out and named. All of it takes about half an hour on two idle cores.
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec

from benchmarks.__main__ import machine, report, say
from benchmarks.compare import Case, Length, ratio, run_interleaved, throughput
from benchmarks.selfsupervised_step import (
    MAE_CASES,
    MAE_GOAL,
    OURS,
    SUPERVISED,
    WORK,
    multiply_adds,
)


def measure_mae(case: Case, length: Length) -> str:
    """The ratio of the step times, that of the multiply-adds, and how many times as large the first is."""
    counts = {engine: multiply_adds(WORK[case], engine) for engine in case.engines}
    counted = counts[OURS] / counts[SUPERVISED]
    seconds = run_interleaved("benchmarks.selfsupervised_step", case, case.engines, length, say)
    took = ratio(seconds[SUPERVISED], seconds[OURS])
    verdict = "met" if took.median / counted <= MAE_GOAL else "NOT met"
    return "\n".join(
        [
            f"{case.name}: {throughput(case, seconds[OURS]):.2f} images/s, "
            f"supervised {throughput(case, seconds[SUPERVISED]):.2f}",
            f"  a step takes {took.median:.3f} x that of supervised training ({took.low:.3f} to {took.high:.3f})",
            f"  its multiply-adds are {counted:.3f} x as many ({counts[OURS]:,} and {counts[SUPERVISED]:,})",
            f"  {took.median / counted:.3f} x what they say; goal: at most {MAE_GOAL}: {verdict}",
        ]
    )


def measure_lightly(case: Case, length: Length) -> str:
    """Our speed in times that of lightly."""
    if missing := [name for name in ("lightly", "timm") if find_spec(name) is None]:
        return f"{case.name}: not measured, {' and '.join(missing)} not installed: make bench"
    return report(case, run_interleaved("benchmarks.selfsupervised_step", case, case.engines, length, say))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.selfsupervised",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--heats", type=int, default=3, help="times that every process is started anew")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each engine in a heat")
    given = parser.parse_args(words)
    length = Length(given.heats, given.rounds)
    print(machine(), flush=True)
    for case in (case for case in WORK if given.only in case.name):
        print((measure_mae if case in MAE_CASES else measure_lightly)(case, length), flush=True)


if __name__ == "__main__":
    main()
