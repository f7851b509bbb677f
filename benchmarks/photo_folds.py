"""`python -m benchmarks.photo_folds PHOTOS --cells FILE [--weights WEIGHTS]`: few photos, from scratch and fine-tuned.

PHOTOS is a folder of classes, or one of splits with such folders, which are taken together. Each class is divided into
five folds; every fold is the test set of a model that is trained on the other four, by the recipe that `vitral train`
chooses, whose own choices see the training photos alone. With weights, a linear probe of them and their fine-tuning are
measured as well. A cell is one way on one fold, written as a line of JSON when it is done; those in the file are not
measured again. CPU seconds are of all threads and of the whole run: start, training, evaluation and report.
"""

import argparse
import json
import logging
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

import vitral
from benchmarks.__main__ import machine, say
from benchmarks.grid import Record, append_record, provenance, read_records
from vitral.core.config import parse_settings
from vitral.core.machine import other_running_threads
from vitral.data.datasets.source import open_data
from vitral.evaluation.linear_probe import LinearResult

FOLDS = 5
WAYS = ("scratch", "linear", "fine-tuned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--cells", type=Path, required=True, help="the file of results, which is appended to")
    parser.add_argument("--weights", default="", help="to fine-tune; without them only scratch is measured")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--folds", type=int, nargs="+", default=range(FOLDS))
    parser.add_argument("--set", nargs="*", default=[], metavar="A.B=C", help="settings of the trainings")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # one cell, in this process
    given = parser.parse_args()
    if given.measure:
        (way,), (fold,) = given.ways, given.folds
        print(json.dumps(measure(given.photos, way, fold, given.weights, given.set)))
        return
    done = {(cell["way"], cell["fold"]) for cell in read_records(given.cells)}
    for way in given.ways:
        for fold in given.folds:
            if (way, fold) not in done and (given.weights or way == "scratch"):
                run_cell(given, way, fold)
    for line in summary(read_records(given.cells)):
        print(line)


def run_cell(given: argparse.Namespace, way: str, fold: int) -> None:
    """Measure a cell in a process of its own, so that its CPU seconds are those of a command."""
    command = [sys.executable, "-m", "benchmarks.photo_folds", str(given.photos), "--cells", str(given.cells)]
    options = ["--weights", given.weights, "--ways", way, "--folds", str(fold), "--set", *given.set, "--measure"]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True).stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cell = json.loads(found) | {
        "cpu_seconds": round(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }
    append_record(given.cells, cell)
    say(f"{way}, fold {fold}: {cell['correct']} of {cell['images']}, {cell['cpu_seconds']} CPU seconds")


def measure(photos: Path, way: str, fold: int, weights: str, changes: Sequence[str]) -> dict[str, object]:
    """The facts of a cell."""
    logging.getLogger("vitral").setLevel(logging.ERROR)
    others = other_running_threads()
    settings: dict[str, object] = {}
    with TemporaryDirectory(prefix="vitral-folds-") as home:
        data = divide(photos, fold, Path(home) / "photos")
        if way == "linear":
            result = vitral.evaluate(weights, str(data), with_=("linear",), cache=False).results[0]
            assert isinstance(result, LinearResult)
            correct, images = round(result.top1 * result.images), result.images
        else:
            start = [f"weights={weights}"] if way == "fine-tuned" else []
            run = vitral.train(str(data), out=Path(home) / "run", settings=parse_settings([*start, *changes]))
            assert run.evaluation is not None
            correct = sum(each.correct for each in run.evaluation.accuracy.classes)
            images = run.evaluation.accuracy.images
            settings |= {"recipe": run.recipe.name, "steps": run.steps, "threads": run.recipe.threads}
            settings |= {"finetune": run.recipe.finetune.model_dump(mode="json")}
    found = {"way": way, "fold": fold, "correct": correct, "images": images, "set": [*changes], **settings}
    return found | provenance() | {"machine": machine(), "other_threads": round(others, 1)}


def divide(photos: Path, fold: int, home: Path) -> Path:
    """A folder with the photos of one fold as test images and of the others as training images."""
    samples = open_data(str(photos))
    for label, name in enumerate(samples.classes):
        items = sorted(item.name for item in samples.items if item.label == label)
        random.Random(0).shuffle(items)
        for number, item in enumerate(items):
            folder = home / ("test" if number % FOLDS == fold else "train") / name
            folder.mkdir(parents=True, exist_ok=True)
            path = Path(samples.store.address(item)).resolve()
            os.symlink(path, folder / path.name)
    return home


def summary(cells: Sequence[Record]) -> list[str]:
    """For each way: accuracy over all photos, mean and deviation over folds, CPU seconds of a fold."""
    lines = []
    for way in WAYS:
        found = [cell for cell in cells if cell["way"] == way]
        if found:
            shares = [100 * cell["correct"] / cell["images"] for cell in found]
            spent = [cell["cpu_seconds"] for cell in found]
            deviation = f" +- {stdev(shares):.1f}" if len(shares) > 1 else ""
            lines.append(
                f"{way}: {mean(shares):.1f}%{deviation} over {len(found)} folds, {mean(spent):.0f} CPU seconds"
            )
    return lines


if __name__ == "__main__":
    main()
