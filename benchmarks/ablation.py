"""`python -m benchmarks.ablation`: what each part of a recipe gives, at equal CPU time.

The recipe of the demo is trained as it is and with one part changed, on one thread, each for the same CPU time: the
number of steps follows from a short run of the same kind, so that a cheaper step means more of them. Accuracy is that
of held-out training images; the test images are not touched. Each run is a line of JSON once it is over.

  python -m benchmarks.ablation                       all runs that are not done yet
  python -m benchmarks.ablation --seeds 0             those of one seed
  python -m benchmarks.ablation --report              the table of what is there
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.grid import EMPTY, Record, append_record, provenance, read_records

CELLS = Path(__file__).with_name("ablation.jsonl")
SEEDS = (0, 1, 2)
PILOT_STEPS = 60  # of the run that tells what a step costs
HELD_OUT = 0.2
ADAMW = ("optimizer=adamw", "optimizer.weight_decay=0.1")
# A part, how it is changed, and the settings for that. AdamW is given three rates, of which the best counts.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "as it is": (),
    "optimizer: AdamW, lr 7e-4": (*ADAMW, "optimizer.lr=7e-4"),
    "optimizer: AdamW, lr 2e-3": (*ADAMW, "optimizer.lr=2e-3"),
    "optimizer: AdamW, lr 6e-3": (*ADAMW, "optimizer.lr=6e-3"),
    "stem: plain patches": ("model.stem=patches", "model.stem.patch=4"),
    "dropping patches: half, falling to none": ("task.patch_drop=linear",),
    "progressive size: from half the side": ("images.size=progressive",),
    "averaging: none": ("average=none",),
    "augmentation: none": ("images.crop=resize",),
    "augmentation: shifts by 2 pixels": ("images.crop=random_crop", "images.crop.padding=2", "images.crop.flip=false"),
}


class Cell(NamedTuple):
    """One run."""

    variant: str
    seed: int
    seconds: int  # of CPU time

    @classmethod
    def of(cls, record: Record) -> "Cell":
        return cls(*(record[field] for field in cls._fields))


def open_cells(records: Sequence[Record], seeds: Sequence[int], seconds: int) -> Iterator[Cell]:
    """The runs that are not done, one seed after the other."""
    done = {Cell.of(record) for record in records}
    cells = (Cell(variant, seed, seconds) for seed in seeds for variant in VARIANTS)
    return (cell for cell in cells if cell not in done)


def run_cell(cell: Cell) -> Record:
    """Train and evaluate, after a short run that tells what a step costs."""
    cost = train(cell, PILOT_STEPS, PILOT_STEPS)[0] / PILOT_STEPS
    steps = max(PILOT_STEPS, round(cell.seconds / cost))
    spent, accuracy = train(cell, steps, steps)
    return cell._asdict() | {"cpu_seconds": round(spent, 1), "accuracy": accuracy, "steps": steps} | provenance()


def train(cell: Cell, steps: int, taken: int) -> tuple[float, float]:
    """The CPU seconds of a run of so many steps, and its accuracy on held-out images at the end."""
    import torch

    from benchmarks.stepwise_run import StepwiseRun
    from vitral.core.config import override
    from vitral.runs.request import RunRequest, resolve
    from vitral.training.metrics import read_metrics

    torch.set_num_threads(1)
    settings: dict[str, object] = {"device": "cpu", "workers": 0, "threads": 1, "steps": steps, "seed": cell.seed}
    recipe, samples, *_ = resolve(RunRequest("sample", settings=settings | {"hold_out": HELD_OUT, "eval_every": 1e6}))
    run = StepwiseRun(override(recipe, VARIANTS[cell.variant]), samples)
    try:
        started = time.process_time()
        run.take(taken - 1)
        spent = time.process_time() - started
        run.take(1)  # with the evaluation
        values = [line.values for line in read_metrics(run.folder.path) if line.split == "val"]
        return spent, values[-1]["accuracy"]
    finally:
        run.close()


def report(records: Sequence[Record], seconds: int) -> str:
    """Mean accuracy in percent and its deviation over seeds, a row for each variant, in Markdown."""
    lines = [f"| held-out accuracy in % after {seconds} CPU seconds | mean | deviation | seeds | steps | CPU seconds |"]
    lines.append("|---" * 6 + "|")
    done = 0
    for variant in VARIANTS:
        found = [each for each in records if (each["variant"], each["seconds"]) == (variant, seconds)]
        done += len(found)
        scores = [100 * each["accuracy"] for each in found]
        values = [f"{statistics.mean(scores):.2f}" if scores else EMPTY]
        values.append(f"{statistics.stdev(scores):.2f}" if len(scores) > 1 else EMPTY)
        values.append(str(len(scores)))
        for field in ("steps", "cpu_seconds"):
            values.append(f"{statistics.mean(each[field] for each in found):.0f}" if found else EMPTY)
        lines.append(f"| {' | '.join([variant, *values])} |")
    return "\n".join([*lines, "", f"{done} of {len(VARIANTS) * len(SEEDS)} runs are done."])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="of CPU time for each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--json", type=Path, default=CELLS, metavar="FILE", help="the runs that are done")
    parser.add_argument("--report", action="store_true", help="print the table of what is there, run nothing")
    given = parser.parse_args(words)
    while not given.report:
        # Read again before each run: another process may do the runs of another seed.
        cell = next(open_cells(read_records(given.json), given.seeds, given.seconds), None)
        if cell is None:
            break
        record = run_cell(cell)
        append_record(given.json, record)
        print(f"{cell}: {100 * record['accuracy']:.2f}% in {record['cpu_seconds']:.0f} s", file=sys.stderr, flush=True)
    print(report(read_records(given.json), given.seconds))


if __name__ == "__main__":
    main()
