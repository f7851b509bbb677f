"""`python -m benchmarks.checkpoint_stall`: step time while checkpoints of 20 million parameters are written.

With its optimizer such a checkpoint is a quarter of a gigabyte. A save copies it in memory and writes it beside the
next steps; where every step saves, each waits for the disk to be done with the one before, which no run asks for.
"""

import sys
import time
from contextlib import closing
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from benchmarks.__main__ import machine
from benchmarks.random_dataset import open_noise
from benchmarks.stepwise_run import StepwiseRun
from vitral.core.config import override
from vitral.models.registry import model_config
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import get_recipe

SECONDS, WARM = 45.0, 3  # of measuring, and steps before it
NEVER, SELDOM, ALWAYS = 1e9, 8.0, 0.0  # seconds between two checkpoints
BATCH = 16
GOAL = 2.0  # the longest step, in usual ones: a save takes no longer than a step


class Times(NamedTuple):
    """Seconds of a step."""

    usual: float
    longest: float


def large(seconds: float) -> Recipe:
    """A ViT-S/16 on small images that is saved every so many seconds."""
    recipe = get_recipe("cifar10").model_copy(update={"model": model_config("S/16", image_size=64)})
    settings = [
        "average=none",
        "device=cpu",
        "workers=0",
        f"batch_size={BATCH}",
        f"checkpoints.every_seconds={seconds}",
    ]
    return override(recipe, [*settings, "length=steps", "length.steps=100000"]).with_classes(10)


def timed(between: float, seconds: float) -> Times:
    """The steps of a run that lasts so long and saves so often."""
    samples = open_noise(4 * BATCH)
    samples = replace(samples, items=samples.of("train"))
    found: list[float] = []
    with closing(StepwiseRun(large(between), samples)) as paced:
        paced.take(WARM)
        while sum(found) < seconds:
            started = time.perf_counter()
            paced.take(1)
            found.append(time.perf_counter() - started)
            print(f"\r{len(found)} steps, {sum(found):.1f} s ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return Times(median(found), max(found))


def measure(seconds: float = SECONDS) -> str:
    """Without checkpoints, with one now and then, and with one after every step."""
    never, seldom, always = (timed(between, seconds) for between in (NEVER, SELDOM, ALWAYS))
    lines = [
        f"  {name:<28} usual step {times.usual:.3f} s, longest {times.longest:.3f} s, "
        f"which is {times.longest / never.usual:.2f} x a usual one without checkpoints"
        for name, times in (
            ("no checkpoint", never),
            (f"one every {SELDOM:g} s", seldom),
            ("one after every step", always),
        )
    ]
    reached = seldom.longest / never.usual
    verdict = "met" if reached <= GOAL else "NOT met"
    return "\n".join(
        [
            "how long a save of 20 million parameters stalls a step:",
            *lines,
            f"  goal: at most {GOAL:g} x with one every {SELDOM:g} s: {verdict} ({reached:.2f})",
        ]
    )


if __name__ == "__main__":
    print(machine())
    print(measure())
