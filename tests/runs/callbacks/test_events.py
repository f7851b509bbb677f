"""Callbacks: what they are told, and that neither they nor their errors change a byte of a run."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vitral
from tests.runs.small import SETTINGS, StopAfterEachStep, begin, content, photos
from vitral.core.config import parse_settings
from vitral.runs import train as start
from vitral.runs.callbacks.events import EventDispatcher
from vitral.training.checkpoints.checkpoint import find_newest, open_checkpoint
from vitral.training.metrics import read_metrics

STEPS = 12
KINDS = (vitral.Started, vitral.Logged, vitral.Evaluated, vitral.Saved, vitral.Finished)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    photos(tmp_path / "photos")
    return tmp_path


class Recorder:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[vitral.RunEvent] = []

    def __call__(self, event: vitral.RunEvent) -> None:
        self.events.append(event)

    def steps(self, kind: type) -> list[int]:
        return [event.step for event in self.events if isinstance(event, kind)]


def fails_at(kind: type, step: int) -> Recorder:
    class Failing(Recorder):
        def __call__(self, event: vitral.RunEvent) -> None:
            super().__call__(event)
            if isinstance(event, kind) and event.step >= step:
                raise ZeroDivisionError(f"{kind.__name__} {event.step}")

    return Failing()


def test_a_run_tells_what_happens_in_order(home: Path) -> None:
    seen = Recorder()
    run = begin(home, "checkpoints.every_seconds=0", "checkpoints.keep=20", callbacks=[seen])
    first, last = seen.events[0], seen.events[-1]
    assert isinstance(first, vitral.Started)
    assert (first.path, first.step, first.steps) == (home / "run", 0, STEPS)
    assert first.recipe == run.recipe
    assert isinstance(last, vitral.Finished)
    assert (last.path, last.step) == (home / "run", STEPS)
    assert run.evaluation is not None
    assert last.metrics["accuracy"] == run.evaluation.accuracy.top1
    assert seen.steps(vitral.Logged) == list(range(1, STEPS + 1))
    assert seen.steps(vitral.Evaluated) == [4, 8, 12]
    assert seen.steps(vitral.Saved) == list(range(STEPS + 1))
    assert {type(event) for event in seen.events[1:-1]} == {vitral.Logged, vitral.Evaluated, vitral.Saved}


def test_an_event_has_the_metrics_that_are_in_the_file(home: Path) -> None:
    seen = Recorder()
    begin(home, callbacks=[seen])
    told = [event for event in seen.events if isinstance(event, vitral.Logged | vitral.Evaluated)]
    lines = read_metrics(home / "run")
    assert [(event.step, event.epoch, event.metrics) for event in told] == [
        (line.step, line.epoch, line.values) for line in lines
    ]
    assert {"loss", "accuracy", "rate"} <= set(lines[0].values)


def test_the_last_evaluation_that_is_the_best_is_the_one_in_the_bundle(home: Path) -> None:
    bundles: dict[int, bytes] = {}
    best = home / "run/best/model.safetensors"

    def keep(event: vitral.RunEvent) -> None:
        if isinstance(event, vitral.Evaluated) and event.is_best:
            bundles[event.step] = best.read_bytes()

    begin(home, "seed=1", callbacks=[keep])
    assert bundles
    assert bundles[max(bundles)] == best.read_bytes()
    scores = [line.values["accuracy"] for line in read_metrics(home / "run") if line.split == "val"]
    assert sorted(bundles) == [4 * (at + 1) for at in range(3) if scores[at] > max(scores[:at], default=-1)]


def test_a_checkpoint_is_complete_when_its_event_comes(home: Path) -> None:
    opened: list[int] = []

    def verify(event: vitral.RunEvent) -> None:
        if isinstance(event, vitral.Saved):
            opened.append(open_checkpoint(event.path).step)

    begin(home, "checkpoints.every_seconds=0", "checkpoints.keep=1", callbacks=[verify])
    assert opened == list(range(STEPS + 1))


def test_callbacks_change_no_byte(home: Path) -> None:
    def meddle(event: vitral.RunEvent) -> None:
        torch.rand(3)
        np.random.random(3)
        random.random()
        torch.manual_seed(event.step)
        if isinstance(event, vitral.Logged | vitral.Evaluated | vitral.Finished):
            assert isinstance(event.metrics, dict)
            event.metrics.clear()

    settings = ("model.block.drop_path_rate=0.2", "task.mixing=mixup", "average=ema")
    begin(home, *settings, out="without")
    begin(home, *settings, callbacks=[meddle])
    assert content(home / "run") == content(home / "without")


@pytest.mark.parametrize(
    ("kind", "step", "saved"),
    [
        (vitral.Started, 0, 0),
        (vitral.Logged, 6, 7),  # told while the next step is taken
        (vitral.Evaluated, 4, 4),
        (vitral.Evaluated, 12, 12),
        (vitral.Saved, 0, 0),
        (vitral.Finished, 12, 12),
    ],
)
@pytest.mark.sampled(4)
def test_an_error_of_a_callback_ends_a_run_that_is_saved_and_resumes_to_the_same_bytes(
    home: Path, kind: type, step: int, saved: int
) -> None:
    begin(home, out="unbroken")
    failing, other = fails_at(kind, step), Recorder()
    with pytest.raises(ZeroDivisionError, match=f"{kind.__name__} {step}") as caught:
        begin(home, callbacks=[failing, other])
    assert any(f"vitral.resume('{home / 'run'}')" in note for note in caught.value.__notes__)
    assert isinstance(failing.events[-1], kind)  # it is not called again
    newest = find_newest(home / "run/checkpoints").checkpoint
    assert newest is not None
    assert newest.step == saved
    assert other.steps(vitral.Saved)[-1] == saved  # the others are
    again = Recorder()
    vitral.resume(str(home / "run"), callbacks=[again])
    assert again.steps(vitral.Started) == [saved]
    assert isinstance(again.events[-1], vitral.Finished)
    assert content(home / "run") == content(home / "unbroken")


def test_a_run_that_is_stopped_by_a_signal_does_not_finish(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        assert begin(home, callbacks=[seen]).signal
    assert seen.steps(vitral.Saved) == [0, 1]
    assert seen.steps(vitral.Finished) == []
    vitral.resume(str(home / "run"), callbacks=[seen])
    assert seen.steps(vitral.Started) == [0, 1]
    assert seen.steps(vitral.Logged) == list(range(1, STEPS + 1))
    assert seen.steps(vitral.Finished) == [STEPS]


def test_an_exit_in_a_callback_waits_until_the_run_is_saved(home: Path) -> None:
    def leave(event: vitral.RunEvent) -> None:
        if isinstance(event, vitral.Logged) and event.step == 2:
            sys.exit(5)

    with pytest.raises(SystemExit) as caught:
        begin(home, callbacks=[leave])
    assert caught.value.code == 5
    newest = find_newest(home / "run/checkpoints").checkpoint
    assert newest is not None
    assert newest.step == 3


def test_the_first_of_several_errors_is_raised(tmp_path: Path) -> None:
    events = EventDispatcher([fails_at(vitral.Saved, 2), fails_at(vitral.Saved, 1)])
    events.send(vitral.Saved(0, tmp_path))
    events.raise_error("")
    for step in (1, 2):
        events.send(vitral.Saved(step, tmp_path))
    with pytest.raises(ZeroDivisionError, match="Saved 1"):
        events.raise_error("")


PROGRAM = """
import json, sys
import vitral

home, mode, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def note(event):
    with open(f"{home}/events", "a") as file:
        print(type(event).__name__, event.step, file=file)
    if mode == "fail" and isinstance(event, vitral.Evaluated) and event.step == 4:
        raise ZeroDivisionError("on purpose")

if mode == "resume":
    vitral.resume(f"{home}/run", callbacks=[note])
else:
    out = f"{home}/{'run' if mode == 'fail' else mode}"
    vitral.train(f"{home}/photos", settings=settings, recipe="small_hundreds", out=out, callbacks=[note])
"""


@pytest.mark.slow
def test_an_error_of_a_callback_stops_and_saves_all_processes(home: Path) -> None:
    (home / "program.py").write_text(PROGRAM)
    settings = json.dumps(parse_settings([*SETTINGS, "batch_size=6", "distributed=fsdp"]))
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    told: dict[str, list[str]] = {}
    for mode in ("unbroken", "fail", "resume"):
        words = [*several, str(home / "program.py"), str(home), mode, settings]
        quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=quiet, check=False, capture_output=True, text=True, timeout=240)
        assert (done.returncode == 0) == (mode != "fail"), done.stderr
        assert ("ZeroDivisionError: on purpose" in done.stderr) == (mode == "fail")
        told[mode] = (home / "events").read_text().splitlines()
        (home / "events").unlink()
    assert told["fail"][-1].startswith("Evaluated 4")
    assert told["resume"][0] == "Started 6"  # step 5 tells the other process, and both stop after the next
    assert told["unbroken"].count("Finished 12") == told["resume"].count("Finished 12") == 1
    assert content(home / "run") == content(home / "unbroken")
