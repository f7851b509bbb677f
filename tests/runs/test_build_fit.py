"""What a task computes from training images before its first step is the same everywhere, and computed once."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.runs import small
from tests.runs.small import StopAfterEachStep, begin, content, photos, recipe_and_samples
from vitral.runs import train as start
from vitral.runs.build import build_task, fit_task
from vitral.runs.train import resume
from vitral.tasks.selfsupervised.targets.codes import CodeNumbers
from vitral.training.distributed.process_group import ProcessGroup

HERE = ProcessGroup(torch.device("cpu"))
CODES = (*small.SETTINGS, "task=beit", "task.least=1", "task.ratio=0.5", "task.target.codes=8")


def test_a_codebook_depends_on_the_seed_and_the_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path)
    monkeypatch.setattr(small, "SETTINGS", CODES)
    found = []
    for seed in (1, 1, 2):
        recipe, samples = recipe_and_samples(tmp_path, f"seed={seed}")
        task = build_task(recipe, samples, HERE.device)
        assert f"{len(samples.of('train'))} training images" in fit_task(task, recipe, samples, HERE)
        found.append(task.get_buffer("target.codebook"))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_task_that_computes_nothing_reads_nothing(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    with patch("vitral.runs.build.Loader", side_effect=AssertionError):
        assert fit_task(build_task(recipe, samples, HERE.device), recipe, samples, HERE) == ""


def test_a_run_that_stops_after_every_step_has_it_in_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "photos")
    monkeypatch.setattr(small, "SETTINGS", CODES)
    begin(tmp_path, "epochs=1", out="unbroken")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(tmp_path, "epochs=1")
    monkeypatch.setattr(CodeNumbers, "fit", None)
    steps = [run.step]
    while run.signal:
        run = resume(str(tmp_path / "run"))
        steps.append(run.step)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 2
    assert content(tmp_path / "run") == content(tmp_path / "unbroken")
