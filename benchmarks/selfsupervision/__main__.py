"""`python -m benchmarks.selfsupervision`: what ten CPU minutes of pre-training without labels give on CIFAR-10.

Every method trains one encoder without labels. Then: k-NN and a linear probe of its features, with the labels of a
fifth of the training images, and fine-tuning with a tenth of the labels. `scratch` trains the same encoder with that
tenth alone, by the same recipe, for the CPU time of pre-training and tuning together; `best scratch` is the recipe of
Vitral for the dataset, for as long. Trainings end by CPU seconds, so it does not matter what else the machine does. A
run uses one thread. Ctrl-C, SIGTERM or a kill loses at most a minute of it: the same command goes on.

  python -m benchmarks.selfsupervision --root FOLDER            all cells that are not done yet, one at a time
  python -m benchmarks.selfsupervision --arms dino,scratch      some of them
  python -m benchmarks.selfsupervision --split val --minutes 2 --tuning 0
                                                                a trial of constants, on held-out training images
  python -m benchmarks.selfsupervision --report                 the table of what is there
  python -m benchmarks.selfsupervision --docs                   the same, written into docs/selfsupervised.md, and drawn
"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir

from benchmarks.grid import append_record, provenance, read_records
from benchmarks.selfsupervision.cells import ARMS, SPLITS, Cell, open_cells
from benchmarks.selfsupervision.report import plot, report, with_table

CELLS = Path(__file__).parent / "cells.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "selfsupervised.md"
PICTURE = PAGE.with_suffix(".png")


def run_open(given: argparse.Namespace, wanted: Cell) -> None:
    """Run the open cells; each is on the disk before the next begins."""
    from benchmarks.selfsupervision.stages import Stopped, run_cell
    from vitral.core.errors import VitralError

    logging.getLogger("vitral").setLevel(logging.WARNING)
    failed: set[Cell] = set()
    while True:
        records = read_records(given.json)  # again before each: another process may run other arms
        cells = (cell for cell in open_cells(records, wanted) if cell.arm in given.arms and cell not in failed)
        cell = next(cells, None)
        if cell is None:
            return
        home = given.work / cell.name
        try:
            found = run_cell(cell, given.root, home)
        except Stopped:
            print(f"{cell.name}: saved; the same command continues", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        except VitralError as error:  # such as a collapse; its cell stays empty
            print(f"{cell.name}: {error}", file=sys.stderr, flush=True)
            failed.add(cell)
            continue
        append_record(given.json, cell._asdict() | dict(found) | provenance())
        rmtree(home, ignore_errors=True)
        print(f"{cell.name}: {found}", file=sys.stderr, flush=True)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.selfsupervision",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", default="", metavar="FOLDER", help="where CIFAR-10 is, if not in a usual place")
    parser.add_argument("--arms", default=",".join(ARMS), type=lambda text: text.split(","), help="(default: all)")
    parser.add_argument("--split", choices=SPLITS, default="test", help="val: held-out training images")
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU minutes of pre-training")
    parser.add_argument("--tuning", type=float, default=3.0, help="CPU minutes of fine-tuning; 0: k-NN alone")
    parser.add_argument("--work", type=Path, default=Path(gettempdir()) / "vitral-selfsupervision", metavar="FOLDER")
    parser.add_argument(
        "--json", type=Path, default=CELLS, metavar="FILE", help="the cells (default: beside this file)"
    )
    parser.add_argument("--report", action="store_true", help="print the table of what is there, run nothing")
    parser.add_argument("--docs", action="store_true", help="write the table and the plot of docs/selfsupervised.md")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    wanted = Cell("", split=given.split, minutes=given.minutes, tuning_minutes=given.tuning)
    if not given.report and not given.docs:
        run_open(given, wanted)
    records = read_records(given.json)
    if given.docs:
        if records:
            plot(records, PICTURE, wanted)
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), records, wanted), encoding="utf-8")
    print(report(records, wanted))


if __name__ == "__main__":
    main()
