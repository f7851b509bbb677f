"""A run that starts from weights ends with weights that are no worse, and says so if it is too short to be better."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.runs.small import StopAfterEachStep, begin, content, photos
from vitral.runs import train as start
from vitral.runs.artifacts import NOT_IMPROVED, RunArtifacts
from vitral.runs.train import resume
from vitral.weights.bundle import read_bundle

HARMFUL = ("finetune=lp_ft", "lr=3", "clip=none", "schedule.warmup=0", "schedule=constant")


def val_accuracy(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["accuracy"] for line in lines if line["split"] == "val"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    photos(home / "photos")
    begin(home, "epochs=12", "lr=1e-2", out="first")
    return home / "first"


@pytest.fixture
def first(home: Path, trained: Path) -> Path:
    """A model that answers better than it will after the harmful settings."""
    return Path(shutil.copytree(trained, home / "first"))


def test_fine_tuning_that_only_harms_ends_with_the_weights_it_started_from(
    home: Path, first: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    run = begin(home, f"from={first}", *HARMFUL, "checkpoints.keep=1", "checkpoints.every_seconds=0")
    found = val_accuracy(home / "run")
    assert list(found) == [0, 4, 8, 12]
    assert found[0] == max(found.values())
    assert found[0] > found[4], "the settings of this test must harm"
    assert run.metrics["accuracy"] == pytest.approx(found[0])
    assert NOT_IMPROVED in caplog.text
    assert NOT_IMPROVED in run.report.read_text()
    tensors, began = read_bundle(home / "run/best").tensors, read_bundle(first / "best").tensors
    assert all(torch.equal(tensors[name], began[name]) for name in began if not name.startswith("head."))
    assert not all(torch.equal(tensors[name], each) for name, each in read_bundle(home / "run/last").tensors.items())


@pytest.mark.slow
def test_a_run_whose_start_is_its_best_resumes_to_the_same_bits(
    home: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (f"from={first}", *HARMFUL, "checkpoints.keep=1")
    begin(home, *settings, out="unbroken")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *settings)
    shutil.rmtree(first)
    while run.signal:
        run = resume(str(home / "run"))
    assert content(home / "run") == content(home / "unbroken")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_around_the_first_bundle_loses_nothing(
    home: Path, first: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    settings = (f"from={first}", *HARMFUL)
    begin(home, *settings, out="unbroken")
    child = os.fork()
    if not child:
        write = RunArtifacts.write_bundle

        def killed(*arguments: object) -> None:
            if moment == "after":
                write(*arguments)  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(RunArtifacts, "write_bundle", killed)
        begin(home, *settings)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(val_accuracy(home / "run")) == [0]
    assert (home / "run/best").exists() is (moment == "after")
    resume(str(home / "run"))
    assert content(home / "run") == content(home / "unbroken")


def test_a_run_from_random_weights_is_not_evaluated_before_its_first_step(home: Path) -> None:
    begin(home)
    assert list(val_accuracy(home / "run")) == [4, 8, 12]


def test_a_plan_of_a_few_steps_is_called_too_short(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitral")
    begin(home, "steps=3")
    assert "warning: only 3 steps in all (an epoch has 4 steps)" in caplog.text
    caplog.clear()
    begin(home, "steps=20", out="longer")
    assert "warning: only" not in caplog.text
