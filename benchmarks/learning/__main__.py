"""`python -m benchmarks.learning`: what is learned in 2, 5 and 10 CPU minutes, by ours and by other libraries.

Ours is the recipe that a user gets by default. The others are (a) timm's ViT with timm's AdamW settings in a plain
loop, (b) vit-pytorch's ViT, (c) transformers' ViT with its Trainer, (d) CCT with its authors' shapes and constants.
Each tries three learning rates for 2 minutes on held-out training images; the best is trained for each time anew, with
a schedule that ends there, and tested once, with three seeds. A run has one thread on a core of its own. The number of
steps follows from a short run of the same kind; what it took in the end is in the record. Needs the Python of
`make bench`.

  python -m benchmarks.learning --root cifar10=FOLDER       all cells that are not done yet, two at a time
  python -m benchmarks.learning --only vitral --limit 4     some of them
  python -m benchmarks.learning --report                    the table of what is there
  python -m benchmarks.learning --plot learning.png         the same, drawn
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from benchmarks.grid import Record, append_record, provenance, read_records
from benchmarks.learning.cells import Cell, open_cells
from benchmarks.learning.report import plot, report

CELLS = Path(__file__).parent / "cells.jsonl"
PILOT_STEPS = 120  # of the run that tells what a step costs
TOLERANCE = 0.05  # a run that missed its time by more is repeated, once


def run_cell(cell: Cell, root: str) -> Record:
    """Train and test; the steps follow from what a step of a short run took."""
    import torch

    from benchmarks.learning.systems import TRAIN, open_problem

    torch.set_num_threads(1)
    budget, train = 60.0 * cell.minutes, TRAIN[cell.system]
    cost = train(open_problem(cell, root, PILOT_STEPS), PILOT_STEPS).cpu_seconds / PILOT_STEPS
    for _ in range(2):
        steps = max(1, round(budget / cost))
        torch.manual_seed(cell.seed)
        found = train(open_problem(cell, root, steps), steps)
        if abs(found.cpu_seconds / budget - 1) <= TOLERANCE:
            break
        cost = found.cpu_seconds / steps
    return cell._asdict() | found._asdict() | {"steps": steps} | provenance()


def start_worker(cell: Cell, root: str, core: int) -> Record | None:
    """A cell in a process of its own on one core; None if it failed, which is said."""
    command = [sys.executable, "-m", "benchmarks.learning", "--root", root, "--worker", json.dumps(cell)]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | alone) as child:
        os.sched_setaffinity(child.pid, {core})
        assert child.stdout is not None
        said = child.stdout.read()
    lines = [line for line in said.splitlines() if line.startswith("RECORD ")]
    if child.returncode or not lines:
        print(f"{cell}: exit {child.returncode}", file=sys.stderr)
        return None
    return json.loads(lines[-1].removeprefix("RECORD "))


def run_open(roots: dict[str, str], only: str, limit: int, file: Path) -> None:
    """Run the open cells, one on each core; each is on the disk before the next begins."""
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    writing, left, failed = Lock(), limit, set()

    def run(cell: Cell) -> None:
        core = cores.get()
        try:
            record = start_worker(cell, roots.get(cell.dataset, ""), core)
        finally:
            cores.put(core)
        with writing:
            if record is None:
                failed.add(cell)
                return
            append_record(file, record)
        print(f"{cell}: {100 * record['accuracy']:.2f}% in {record['cpu_seconds']:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        while left > 0:
            wanted = [cell for cell in open_cells(read_records(file)) if cell not in failed and only in cell.system]
            if not wanted:
                return
            list(pool.map(run, wanted[:left]))  # the tests of a system follow once its search is over
            left -= len(wanted)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", action="append", default=[], metavar="DATASET=FOLDER", help="where a dataset is")
    parser.add_argument("--only", default="", metavar="SYSTEM", help="one system (default: all)")
    parser.add_argument("--limit", type=int, default=10**6, help="at most so many cells")
    parser.add_argument(
        "--json", type=Path, default=CELLS, metavar="FILE", help="the cells (default: beside this file)"
    )
    parser.add_argument("--report", action="store_true", help="print the table of what is there, run nothing")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw what is there, run nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    if given.worker:
        record = run_cell(Cell(*json.loads(given.worker)), "".join(given.root))
        print("RECORD " + json.dumps(record))
        return
    if not given.report and not given.plot:
        run_open(dict(root.split("=", 1) for root in given.root), given.only, given.limit, given.json)
    records = read_records(given.json)
    if given.plot:
        plot(records, given.plot)
    print(report(records))


if __name__ == "__main__":
    main()
