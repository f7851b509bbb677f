"""Runs killed at random instants, set-up included: each is taken up by `--auto-resume` and ends in the same bytes.

Classification with 0 and 2 workers and with two processes, each task that needs no labels, fine-tuning in stages with
its cache of tokens, and a sweep, which ends in the same table.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.attack.artifacts import ENDS, SETTINGS
from benchmarks.attack.case import Result

MOST = 20  # starts of one run
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "vitral")


class Arm(NamedTuple):
    """A kind of run, and its share of the kills."""

    share: float
    workers: int = 0
    processes: int = 1
    settings: dict[str, Any] = {}  # noqa: RUF012, never changed
    weights: str = ""  # the arm whose last weights it starts from
    sweep: bool = False


PLAIN = {"task.mixing": "none"}
VIEWS = {"images.views": "two"}
DINO = {"task": "dino", **VIEWS, "task.head.outputs": 32, "task.head.hidden": 24, "task.head.bottleneck": 8}
ARMS = {
    "0 workers": Arm(0.5),
    "2 workers": Arm(0.15, workers=2),
    "2 processes": Arm(0.1, processes=2),
    "masked patches": Arm(0.03, settings={"task": "masked_patches"}),
    "mae": Arm(0.03, settings={"task": "mae", "model.pool": "mean", "task.decoder.width": 16, "task.decoder.heads": 2}),
    "dino": Arm(0.03, settings=DINO),
    "dino, 2 workers": Arm(0.03, workers=2, settings=DINO),
    "moco_v3": Arm(
        0.03, settings={"task": "moco_v3", "microbatches": 1, **VIEWS, "task.head.hidden": 24, "task.head.outputs": 8}
    ),
    "simmim": Arm(0.03, settings={"task": "simmim", "image_size": 32, "task.unit": 16, "model.stem.patch": 16}),
    "staged fine-tuning": Arm(
        0.04, settings={"finetune": "staged", "finetune.layers": 1, **PLAIN}, weights="0 workers"
    ),
    "sweep": Arm(0.03, sweep=True),
}


def words(photos: Path, run: Path, arm: Arm) -> list[str]:
    settings = SETTINGS | {"workers": arm.workers, **arm.settings}
    if "task" in arm.settings:
        del settings["task.mixing"]
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    if arm.sweep and run.exists():
        return ["sweep", "--resume", str(run), "--jobs", "1"]
    if arm.sweep:
        searched = ["--over", "lr=1e-3,3e-3", "--jobs", "1"]
        return ["sweep", str(photos), "--recipe", "small_hundreds", "--out", str(run), *searched, *sets]
    start_from = ["--weights", str(run.parent / f"reference {arm.weights}" / "last")] if arm.weights else []
    return ["train", str(photos), "--recipe", "small_hundreds", "--out", str(run), "--auto-resume", *start_from, *sets]


def start(line: Sequence[str], processes: int) -> int:
    """Start a run in a process group of its own, and return its id."""
    if processes > 1:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [sys.executable, *TORCHRUN, *line], stdout=quiet, stderr=quiet, start_new_session=True
        ).pid  # fmt: skip
    child = os.fork()
    if not child:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        from vitral.cli import main

        try:
            main(line)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        os._exit(0)
    return child


def finish(process: int, seconds: float | None) -> int | None:
    """Wait for a run, or kill all of its processes after some seconds; its exit code, None if it was killed."""
    deadline = time.monotonic() + (300 if seconds is None else seconds)
    while time.monotonic() < deadline:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    for each in [process, *descendants(process)]:  # torchrun starts its workers in sessions of their own
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children[int(entry.read_text().rpartition(")")[2].split()[1])].append(int(entry.parent.name))
    found = list(children[process])
    for each in found:
        found += children[each]
    return found


def run_kills(photos: Path, home: Path, kills: int, seed: int) -> Iterator[Result]:
    """A result for each run that was killed until the kills of its arm were spent."""
    for place, (name, arm) in enumerate(ARMS.items()):
        left = round(kills * arm.share)
        reference = home / f"reference {name}"
        started = time.monotonic()
        if finish(start(words(photos, reference, arm), arm.processes), None):
            yield Result(f"kills, {name}", "reference", "the undisturbed run failed", "failed", 0.0, 0.0)
            continue
        span = time.monotonic() - started
        draw = np.random.default_rng([seed, place])
        number = 0
        while left > 0 and number < kills:  # some runs end before they are killed
            run, killed = home / f"run {name} {number}", 0
            planned = min(left, int(draw.integers(1, 6)))
            code: int | None = None
            for _ in range(MOST):
                wait = float(draw.uniform(0, span)) if killed < planned else None
                code = finish(start(words(photos, run, arm), arm.processes), wait)
                killed += code is None
                if code is not None:
                    break
            fault = compare(run, reference) if code == 0 else f"exit code {code}"
            yield Result(f"kills, {name}", f"{number}, killed {killed} times", fault, str(killed), 0.0, 0.0)
            left -= killed
            number += 1
            shutil.rmtree(run, ignore_errors=True)


def compare(run: Path, reference: Path) -> str:
    """The first file that differs in the runs below a folder; empty if all are the same."""
    found = [path.relative_to(reference) for path in reference.rglob("metrics.jsonl")]
    for folder in (path.parent for path in found):
        for name in (*ENDS, "metrics.jsonl", "results.csv"):
            path = folder / name
            if (reference / path).exists() and (run / path).read_bytes() != (reference / path).read_bytes():
                return f"another {path}"
    return "" if found else "no run"
