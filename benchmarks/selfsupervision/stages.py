"""The stages of a cell: pre-training, features, tuning. Each ends by CPU time and goes on where it was stopped.

A stage that is done has written its result; a training that was killed resumes from its newest checkpoint, with the
CPU seconds until then. What was computed after that checkpoint is computed again, and counted once.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch

import vitral
from benchmarks.grid import append_record, read_records
from benchmarks.selfsupervision.arms import DATASET, HELD_OUT, PROBED, pretraining, tuning
from benchmarks.selfsupervision.cells import PLAIN, SCRATCH, Cell
from vitral.core.config import override
from vitral.core.storage import write_file_atomically
from vitral.data.datasets.arrays import ArrayStore
from vitral.data.datasets.source import open_data
from vitral.data.loading.sampler import hold_out, subset
from vitral.data.samples import Samples, Split, StratifiedSplit
from vitral.evaluation.knn import Features, KnnResult, cross_validate, predict_knn
from vitral.evaluation.linear_probe import LinearResult
from vitral.evaluation.subject import Labels
from vitral.recipes.recipe import Recipe, TimeLimit
from vitral.runs.build import build_task, select_device
from vitral.runs.callbacks.events import Evaluated, EventDispatcher, RunEvent, Saved
from vitral.runs.evaluate import EvaluateKeywords
from vitral.runs.folder import find_run, is_run
from vitral.runs.preflight import create_run, reopen_run
from vitral.runs.request import RunRequest, resolve
from vitral.runs.train import Run, run_session
from vitral.training.checkpoints.checkpoint import latest_step
from vitral.training.distributed.process_group import open_process_group
from vitral.training.progress import SetupProgress, create_display
from vitral.training.time_limit import RESERVE

Result = Mapping[str, Any]


class Stopped(Exception):
    """A signal stopped a training, which is saved."""


class CpuTime(SetupProgress):
    """The time of a run by the CPU seconds of this process, and of those before it."""

    def __init__(self, earlier: float) -> None:
        super().__init__(create_display(quiet=True), 0.0)
        self._earlier = earlier - time.process_time()

    def spent(self) -> float:
        return self._earlier + time.process_time()


def run_cell(cell: Cell, root: str, home: Path) -> Result:
    """All stages of a cell, in its folder."""
    found: dict[str, Any] = {}
    weights = ""
    if cell.arm in PLAIN:
        return probe_plain(cell, root, home)
    if cell.arm not in SCRATCH:
        found["pretraining"] = staged(
            home / "pretraining", lambda run: train(run, pretraining(cell), root, cell.minutes)
        )
        weights = str(home / "pretraining" / "run" / "best")
        found |= staged(home / "features", lambda _: probe(weights, probe_samples(cell, root), cell))
    if not cell.tuning_minutes:
        return found
    total = cell.tuning_minutes if weights else cell.minutes + cell.tuning_minutes
    found["tuning"] = staged(home / "tuning", lambda run: train(run, tuning(cell, weights), root, total))
    return found | {"accuracy": found["tuning"]["accuracy"]}


def staged(home: Path, work: Callable[[Path], Result]) -> Result:
    """The result of a stage, which is read if it was written."""
    file = home / "result.json"
    if not file.exists():
        home.mkdir(parents=True, exist_ok=True)
        write_file_atomically(file, json.dumps(work(home / "run")))
    return json.loads(file.read_text())


def train(folder: Path, recipe: Recipe, root: str, minutes: float) -> Result:
    """Train for so many CPU minutes; the record of a run that was killed is in `cpu.jsonl` beside it."""
    spent_log = folder.with_name("cpu.jsonl")
    step = latest_step(folder / "checkpoints") if is_run(str(folder)) else 0
    if not step:  # nothing is lost
        rmtree(folder, ignore_errors=True)
        spent_log.unlink(missing_ok=True)
        limit = TimeLimit(seconds=60 * minutes / (1 - RESERVE))  # which ends so much earlier
        request = RunRequest(recipe=recipe.model_copy(update={"length": limit}), settings={"root": root})
        complete, samples, _, source = resolve(request)
        create_run(str(folder), complete, samples, [])
    else:
        complete, samples = reopen_run(find_run(str(folder)))
        source = None
    earlier = max((each["cpu_seconds"] for each in read_records(spent_log) if each["step"] <= step), default=0.0)
    clock, ends = CpuTime(earlier), []

    def note(event: RunEvent) -> None:
        if isinstance(event, Saved):
            append_record(spent_log, {"step": event.step, "cpu_seconds": round(clock.spent(), 2)})
        if isinstance(event, Evaluated):
            ends.append(clock.spent())

    with ExitStack() as stack:
        group = stack.enter_context(open_process_group(select_device(complete)))
        torch.set_num_threads(1)
        task = build_task(complete, samples, group.device, source.loaded if source else None)
        events = EventDispatcher([note])
        run = run_session(find_run(str(folder)), samples, group, complete, task, clock, not step, events)
    if run.signal:
        raise Stopped
    return summary(run, ends[-1] if ends else earlier)


def summary(run: Run, cpu_seconds: float) -> Result:
    """What a training took, until the evaluation after its last step, and how accurate it is."""
    images = run.step * run.recipe.batch_size
    found = {"steps": run.step, "epochs": round(images / len(run.samples.of("train")), 2)}
    return found | {
        "cpu_seconds": round(cpu_seconds, 1),
        "parameters": sum(weight.numel() for weight in run.model.parameters()),
        "accuracy": run.evaluation.accuracy.top1 if run.evaluation else None,
    }


def probe_samples(cell: Cell, root: str) -> Samples:
    """The images of the cell's split, and the training images that k-NN and the probe have the labels of."""
    samples = open_data(DATASET, root=root)
    if cell.split == "val":
        samples = hold_out(samples, StratifiedSplit(fraction=HELD_OUT["val"], seed=cell.seed))
    return subset(samples, PROBED, cell.seed)


def probe(weights: str, samples: Samples, cell: Cell) -> Result:
    """The accuracy of k-NN and of a linear probe of features."""
    evaluators = ("knn", "linear") if cell.tuning_minutes else ("knn",)
    options: EvaluateKeywords = {"device": "cpu", "workers": 0, "seed": cell.seed, "cache": False}
    results = vitral.evaluate(weights, samples, with_=evaluators, split=cell.split, **options).results
    return {result.kind: result.top1 for result in results if isinstance(result, KnnResult | LinearResult)}


def probe_plain(cell: Cell, root: str, home: Path) -> Result:
    """The same of features that nobody trained: of an encoder with random weights, or of pixels (k-NN alone)."""
    samples = probe_samples(cell, root)
    recipe = tuning(cell)
    if cell.arm == "random":
        torch.manual_seed(cell.seed)
        model = override(recipe.model, ["head=none"]).build()
        return probe(str(vitral.save(model, home / "weights", transform=recipe.preprocessing())), samples, cell)
    train, labels = pixels(samples, recipe, "train")
    queries, truth = pixels(samples, recipe, cell.split)
    trials = cross_validate(train, labels, cell.seed)
    k = max(trials, key=lambda trial: trial.accuracy).k
    return {"knn": float((predict_knn(train, labels, queries, k) == truth).mean())}


def pixels(samples: Samples, recipe: Recipe, split: Split) -> tuple[Features, Labels]:
    """The normalized pixels of a split, a row for each image, and its labels."""
    assert isinstance(samples.store, ArrayStore)
    items = samples.of(split)
    found = samples.store.rows(item.name for item in items)
    assert found is not None
    images, rows = found
    batch = torch.from_numpy(images[rows]).permute(0, 3, 1, 2)  # (N, C, H, W)
    return recipe.images.normalize.apply(batch).flatten(1).numpy(), np.array([item.label for item in items])
