"""Runs killed at random instants, set-up included: each is taken up by `--auto-resume` and ends in the same bytes."""

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

import numpy as np

from benchmarks.attack.artifacts import ENDS, SETTINGS
from benchmarks.attack.case import Result

MOST = 20  # starts of one run
ARMS = {"0 workers": (0, 1, 0.7), "2 workers": (2, 1, 0.2), "2 processes": (0, 2, 0.1)}  # workers, processes, share
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "vitral")


def words(photos: Path, run: Path, workers: int) -> list[str]:
    settings = SETTINGS | {"workers": workers}
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ["train", str(photos), "--recipe", "small_hundreds", "--out", str(run), "--auto-resume", *sets]


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
    for arm, (workers, processes, share) in ARMS.items():
        left = round(kills * share)
        reference = home / f"reference {workers} {processes}"
        started = time.monotonic()
        if finish(start(words(photos, reference, workers), processes), None):
            yield Result(f"kills, {arm}", "reference", "the undisturbed run failed", "failed", 0.0, 0.0)
            continue
        span = time.monotonic() - started
        draw = np.random.default_rng([seed, workers, processes])
        number = 0
        while left > 0 and number < kills:  # some runs end before they are killed
            run, killed = home / f"run {workers} {processes} {number}", 0
            planned = min(left, int(draw.integers(1, 6)))
            code: int | None = None
            for _ in range(MOST):
                wait = float(draw.uniform(0, span)) if killed < planned else None
                code = finish(start(words(photos, run, workers), processes), wait)
                killed += code is None
                if code is not None:
                    break
            fault = compare(run, reference) if code == 0 else f"exit code {code}"
            yield Result(f"kills, {arm}", f"{number}, killed {killed} times", fault, str(killed), 0.0, 0.0)
            left -= killed
            number += 1
            shutil.rmtree(run, ignore_errors=True)


def compare(run: Path, reference: Path) -> str:
    for name in (*ENDS, "metrics.jsonl", "results.csv"):
        if (run / name).read_bytes() != (reference / name).read_bytes():
            return f"another {name}"
    return ""
