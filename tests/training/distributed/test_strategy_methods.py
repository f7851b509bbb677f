"""Two processes train every self-supervised method like one, and a stop changes no bit."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.data.loading.photos import photos
from tests.errors import raises
from tests.training.distributed.member import KINDS
from tests.training.distributed.methods import METHODS, SOME, STEPS, STOP, alone, recipe
from tests.training.distributed.race import IMAGES, float64
from vitral.core.config import union_members
from vitral.data.datasets.source import open_data
from vitral.tasks import TaskConfig
from vitral.training.distributed.strategy import Ddp

EXACTLY = 1e-9


def each_of(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in names]
    )


EVERY = each_of(METHODS)


def test_every_task_without_labels_is_a_method_here() -> None:
    assert {type(method.task) for method in METHODS.values()} == {
        task for task in union_members(TaskConfig) if not task.labeled
    }


def folder_of(name: str, request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("played" if name in SOME else "played_all_methods")
    return found


@EVERY
def test_two_processes_equal_one_in_float64(name: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(name, request)
    with float64():
        run = alone(name, open_data(str(folder / "photos")))
        start = run.weights()
        one = run.run(0).weights()
    assert max((start[key] - one[key]).abs().max() for key in start) > 0.02  # far from where it began
    for kind in KINDS:
        label = f"{name}-{kind.kind}"
        torch.testing.assert_close(load_file(folder / f"{label}.safetensors"), one, atol=EXACTLY, rtol=0)
        lines = json.loads((folder / f"{label}.json").read_text())
        assert len(lines) == STEPS
        for found, expected in zip(lines, run.lines, strict=True):
            assert found == pytest.approx(expected, abs=1e-6)


@EVERY
@pytest.mark.parametrize("kind", [kind.kind for kind in KINDS])
def test_two_processes_that_stop_change_no_bit(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(name, request)
    through, stopped = (folder / f"{name}-{kind}{end}.safetensors" for end in ("", "-stopped"))
    assert through.read_bytes() == stopped.read_bytes()


@EVERY
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_changes_no_bit(name: str, workers: int, tmp_path: Path) -> None:
    samples = photos(tmp_path / "photos", train=IMAGES)
    with float64():
        through = alone(name, samples, workers=0).run(0)
        alone(name, samples, workers=workers).run(0, STOP).save(tmp_path / "saved", STOP)
        second = alone(name, samples, workers=workers)
        second.run(second.resume(tmp_path / "saved"))
    assert second.bits() == through.bits()
    assert second.lines == through.lines[STOP:]


@EVERY
def test_microbatches_change_nothing_or_are_refused(name: str, tmp_path: Path) -> None:
    if METHODS[name].task.batch_dependence():
        with raises("config.needs_whole_batch", "microbatches"):
            recipe(name, Ddp(), microbatches=2)
        return
    samples = photos(tmp_path, train=IMAGES)
    with float64():
        whole, parts = (alone(name, samples, microbatches).run(0).weights() for microbatches in (1, 2))
    torch.testing.assert_close(parts, whole, atol=EXACTLY, rtol=0)
