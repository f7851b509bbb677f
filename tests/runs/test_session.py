import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.runs.small import EACH, SETTINGS, photos, recipe_and_samples
from vitral.core.config import parse_settings
from vitral.runs.artifacts import RunArtifacts
from vitral.runs.build import build_run, first_split
from vitral.runs.callbacks.events import EventDispatcher
from vitral.runs.folder import RunFolder
from vitral.runs.session import Session
from vitral.runs.train import resume, train
from vitral.training.callbacks import Best, SignalHandler
from vitral.training.checkpoints.checkpoint import checkpoint_path
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.metrics import MetricsLine, read_metrics

HERE = ProcessGroup(torch.device("cpu"))


def session(home: Path, splits: dict[str, int], *settings: str) -> Session:
    recipe, samples = recipe_and_samples(photos(home / "photos", splits), *settings)
    parts = build_run(recipe, samples, HERE)
    folder = RunFolder(home)
    found = Session(folder, parts, HERE, SignalHandler(), RunArtifacts(folder, parts, HERE), EventDispatcher())
    found.restore()
    return found


def evaluations(split: str) -> list[MetricsLine]:
    return [
        MetricsLine(step, step / 4, split, {"loss": 1.0, "accuracy": score}) for step, score in ((4, 0.9), (8, 0.5))
    ]


def test_images_for_validation_choose_the_best_weights(tmp_path: Path) -> None:
    found = session(tmp_path, EACH, "early_stopping=patience", "early_stopping.evaluations=1")
    assert found.split == "val"
    found.evaluations, found.step = evaluations("val"), 8
    assert found.best == Best(4, 1)
    assert found.should_stop_early


def test_masked_patches_choose_the_best_weights_by_loss(tmp_path: Path) -> None:
    found = session(tmp_path, EACH, "task=masked_patches")
    first, second = evaluations("val")
    found.evaluations = [first, second._replace(values={"loss": 0.9, "accuracy": 0.5})]
    assert found.best == Best(8, 0)


def test_images_for_testing_are_watched_and_choose_nothing(tmp_path: Path) -> None:
    found = session(tmp_path, {"train": 12, "test": 4}, "early_stopping=patience", "early_stopping.evaluations=1")
    assert found.split == "test"
    found.evaluations, found.step = evaluations("test"), 8
    assert found.best == Best(8, 0)
    assert not found.should_stop_early


def test_validation_comes_before_testing(tmp_path: Path) -> None:
    _, samples = recipe_and_samples(photos(tmp_path, {"train": 12, "val": 2, "test": 2}))
    assert first_split(samples, "val", "test") == "val"


@pytest.mark.slow
def test_two_processes_record_what_one_does_and_one_goes_on_with_it(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    settings = (*SETTINGS, "batch_size=6", "task.mixing=none", "checkpoints.every_seconds=0", "checkpoints.keep=20")
    words = [word for setting in settings for word in ("--set", setting)]
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitral"]
    command = [*several, "train", str(tmp_path / "photos"), "--recipe", "small_hundreds", *words]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--out", str(tmp_path / "two")], env=quiet, check=True, capture_output=True, timeout=120)
    train(
        str(tmp_path / "photos"),
        settings=parse_settings([*settings]),
        recipe="small_hundreds",
        out=str(tmp_path / "one"),
    )
    for late in (10, 11, 12):
        shutil.rmtree(checkpoint_path(tmp_path / "two/checkpoints", late))
    both = read_metrics(tmp_path / "two")
    assert resume(str(tmp_path / "two")).step == 12
    alone = read_metrics(tmp_path / "one")
    for found in (both, read_metrics(tmp_path / "two")):
        assert [line[:3] for line in found] == [line[:3] for line in alone]
        for here, there in zip(found, alone, strict=True):
            assert here.values == pytest.approx(there.values, rel=1e-4, abs=1e-5)
