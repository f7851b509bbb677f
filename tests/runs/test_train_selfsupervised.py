"""Runs without labels from end to end, and runs that collapse."""

from dataclasses import replace
from pathlib import Path

import pytest

import vitral
from tests.errors import raises
from tests.runs.small import begin, photos
from vitral.core.config import Size
from vitral.data.transforms.views import MultiCrop
from vitral.recipes import selfsupervised
from vitral.recipes.registry import choose_recipe
from vitral.runs.options import TrainOptions
from vitral.runs.request import RunRequest, resolve
from vitral.tasks.selfsupervised.dino import Dino
from vitral.tasks.selfsupervised.mae import Mae
from vitral.weights.load import load

SETTINGS = (
    "task=dino", "task.head.outputs=32", "task.head.hidden=24", "task.head.bottleneck=8", "images.views=two",
    "batch_size=2", "eval_every=3",
)  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "dino",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in selfsupervised.FASHION_RECIPES if kind != "dino"),
    ],
)
def test_a_method_trains_on_the_sample_and_its_weights_are_used(kind: str, tmp_path: Path) -> None:
    settings = {"task": kind, "data.fraction": 0.02, "model.depth": 1, "workers": 0, "threads": 1}
    run = vitral.train("sample", out=tmp_path / "run", steps=3, batch_size=8, settings=settings)
    assert run.step == 3
    assert run.recipe.name == f"fashion_{kind}".replace("masked_patches", "masked")
    assert run.recipe.task.kind == kind
    assert run.report.is_file()
    bundle = load(run.path).bundle
    assert bundle.task == run.recipe.task.trains
    again: TrainOptions = {"weights": str(run.path), "steps": 2, "batch_size": 8, "settings": {"data.fraction": 0.02}}
    tuned = vitral.train("sample", recipe="fashion_tenth", out=tmp_path / "tuned", **again)
    assert tuned.evaluation is not None


def test_a_run_that_collapses_is_stopped_within_an_epoch(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    hot = ("task.teacher_temperature=constant", "task.teacher_temperature.start=20.0")
    with raises("run.collapsed", "teacher_entropy") as caught:
        begin(tmp_path, *SETTINGS, *hot)
    assert int(caught.value.where.removeprefix("step ")) <= 13  # an epoch of 26 images in batches of 2
    assert "temperature" in caught.value.hint


def test_a_run_that_does_not_collapse_is_not_stopped(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    assert begin(tmp_path, *SETTINGS, "task.targets=sinkhorn").step == 3 * 13


@pytest.mark.parametrize(
    ("where", "prefix"), [("fashion-mnist", "fashion"), ("cifar10", "cifar10"), ("pile", "photos")]
)
def test_data_and_method_choose_the_recipe(where: str, prefix: str) -> None:
    samples = replace(vitral.open_data("sample"), where=where)
    assert choose_recipe(samples, task=Mae()).recipe.name == f"{prefix}_mae"
    assert choose_recipe(samples, task=Dino()).recipe.name == f"{prefix}_dino"


def test_small_views_fit_another_model() -> None:
    found = resolve(RunRequest("sample", model="S/16", settings={"task": "dino", "image_size": 112})).recipe
    assert isinstance(found.images.views, MultiCrop)
    assert found.images.views.local.size == Size(48, 48)
    with_own = resolve(RunRequest("sample", settings={"task": "dino"})).recipe
    assert isinstance(with_own.images.views, MultiCrop)
    assert with_own.images.views.local.size == Size(16, 16)
