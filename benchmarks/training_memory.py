"""`python -m benchmarks.training_memory`: the memory of a run of 5,000 steps, tenth by tenth; it should not grow.

The run is all there, with a worker, evaluations and checkpoints; its model is tiny, so that it is over soon.
"""

import sys
from contextlib import closing
from statistics import median

from benchmarks.__main__ import machine
from benchmarks.loader_memory import resident
from benchmarks.stepwise_run import StepwiseRun
from vitral.core.config import override
from vitral.data.datasets.source import open_data
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import get_recipe

STEPS, LOOKS = 5_000, 100
FLAT = 1.02  # times the memory of the second tenth; in the first some is still being taken for the first time
SETTINGS = (
    "model.width=16", "model.depth=2", "model.mixer.heads=2", "batch_size=10", "device=cpu", "workers=1",
    "eval_every=1",
    "checkpoints.every_seconds=2", "length=steps",
)  # fmt: skip


def tiny(steps: int) -> Recipe:
    """A run of so many steps that evaluates and saves often."""
    return override(get_recipe("sample"), [*SETTINGS, f"length.steps={steps}"]).with_classes(10)


def measure(steps: int = STEPS) -> str:
    """Megabytes of all processes of the run."""
    seen = []
    with closing(StepwiseRun(tiny(steps), open_data("sample"))) as paced:
        for look in range(LOOKS):
            seen.append(resident())  # before the steps: during the last of them the worker goes home
            taken = look * (steps // LOOKS)
            print(f"\r{taken} steps, {seen[-1]:.1f} MB ", end="", file=sys.stderr, flush=True)
            paced.take(steps // LOOKS)
    print(file=sys.stderr)
    tenth = LOOKS // 10
    parts = [median(seen[part * tenth : (part + 1) * tenth]) for part in range(10)]
    grown = parts[-1] / parts[1]
    return (
        f"MB in each tenth of a run of {steps:,} steps: {' '.join(f'{part:.1f}' for part in parts)}\n"
        f"  the last is {grown:.3f} x the second; goal: at most {FLAT}: {'met' if grown <= FLAT else 'NOT met'}"
    )


if __name__ == "__main__":
    print(machine())
    print(measure())
