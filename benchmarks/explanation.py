"""`python -m benchmarks.explanation`: what it costs to see what a model sees, against running it on the same images.

All the numbers of one image (attention, distance, tokens and answer of every layer, rollout, relevance) are held
against one forward pass with the fused kernel, in seconds and in the peak memory of a process that does nothing else.
The attention distance of 128 images is held against inference of them, a batch a turn.
"""

import argparse
import json
import resource
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.__main__ import machine, say
from benchmarks.compare import Case, Length, ratio, run_interleaved
from vitral.core.machine import keep_freed_memory
from vitral.explanation.analysis import analyze
from vitral.explanation.attention_distance import mean_attention_distance
from vitral.models.base import Model
from vitral.runs.bench import TimingProcess
from vitral.weights.create import create_model

SEEING, FORWARD = "everything", "one forward pass"
DISTANCE, INFERENCE = "attention distance", "inference"
MEMORY = 1.5  # times that of a forward pass, at most
ONE = Case("B/16, one image", 1, 1 / 3, (SEEING, FORWARD), (FORWARD,), steps=3)
MANY = Case("B/16, 128 images in batches of 16", 16, 1 / 2, (DISTANCE, INFERENCE), (INFERENCE,))
CASES = (ONE, MANY)


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """A turn of the case."""
    keep_freed_memory()
    torch.manual_seed(0)
    model = create_model("B/16").eval()
    torch.nn.init.normal_(
        model.get_parameter("head.linear.weight"), std=0.02
    )  # a new head is zero, and so its gradients
    images = torch.randn(case.images, 3, 224, 224)  # (B, C, H, W)
    match engine:
        case "everything":
            return partial(analyze, model, images)
        case "attention distance":
            return partial(mean_attention_distance, model, [images])
        case _:
            return partial(infer, model, images)


@torch.inference_mode()
def infer(model: Model, images: Tensor) -> None:
    model(images)


class Peak(NamedTuple):
    """Megabytes that a process took at most."""

    built: float  # once the model was there
    done: float  # in the end


def peak(engine: str) -> Peak:
    """Of this process, which builds the model and takes one turn of one image."""
    turn = prepare(engine, ONE)
    built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    turn()
    return Peak(built, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peaks(engine: str, heats: int) -> Peak:
    """The median over processes of their own."""
    found = []
    for _ in range(heats):
        process = TimingProcess(engine, ["benchmarks.explanation", "--peak", engine])
        try:
            found.append(process.measure())
        finally:
            process.stop()
    return Peak(*map(statistics.median, zip(*found, strict=True)))


def time(case: Case, length: Length) -> str:
    """How many times the seconds of the rival ours takes, with the middle half of the rounds."""
    seconds = run_interleaved("benchmarks.explanation", case, case.engines, length, say)
    ours, rival = case.engines
    found, goal = ratio(seconds[rival], seconds[ours]), 1 / case.goal
    turn = [statistics.median(seconds[engine]) / case.steps for engine in (ours, rival)]
    return (
        f"{case.name}: {ours} takes {found.median:.2f} x the seconds of {rival} ({found.low:.2f} to {found.high:.2f}; "
        f"{turn[0]:.2f} s against {turn[1]:.2f} s); goal: at most {goal:.0f}: {verdict(found.median, goal)}"
    )


def memory(heats: int) -> str:
    """How many times the peak memory of a forward pass everything takes."""
    ours, rival = (peaks(engine, heats) for engine in ONE.engines)
    times = ours.done / rival.done
    return (
        f"{ONE.name}: {SEEING} takes {times:.2f} x the peak memory of {FORWARD} ({ours.done:.0f} MB against "
        f"{rival.done:.0f} MB, {rival.built:.0f} MB of both before the first image); "
        f"goal: at most {MEMORY}: {verdict(times, MEMORY)}"
    )


def verdict(found: float, goal: float) -> str:
    return "met" if found <= goal else "NOT met"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.explanation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--heats", type=int, default=2, help="times that every process is started anew")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each engine in a heat")
    parser.add_argument("--peak", choices=ONE.engines, default="", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.peak:
        print(json.dumps(peak(given.peak)), flush=True)
        return
    print(machine(), flush=True)
    for case in CASES:
        print(time(case, Length(given.heats, given.rounds)), flush=True)
    print(memory(given.heats), flush=True)


if __name__ == "__main__":
    main()
