from pathlib import Path

import pytest
import torch

from tests.run.small import photos, recipe_and_samples
from vitral.config import override
from vitral.data.loader.order import InOrder, Shuffled
from vitral.data.loader.plan import ALONE, World
from vitral.errors import ConfigError
from vitral.recipe import Recipe
from vitral.run.parts import device_of, loader_of, parts_of, workers_of
from vitral.train.distributed.group import Group

HERE = Group(torch.device("cpu"))


def test_training_is_shuffled_and_all_else_comes_in_order(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    train, val = (loader_of(recipe, samples, split, ALONE) for split in ("train", "val"))
    assert (train.plan.order, train.sight.view) == (Shuffled(), recipe.images.view)
    assert (val.plan.order, val.sight.view) == (InOrder(), recipe.images.still)
    assert loader_of(recipe, samples, "val", World(rank=1, size=2)).plan.rows == 3


def test_the_weights_come_from_the_seed_alone(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))

    def first_weight(seed: int) -> torch.Tensor:
        torch.rand(seed + 1)  # whatever was drawn before
        return next(parts_of(override(recipe, [f"seed={seed}"]), samples, HERE).model.parameters())

    assert torch.equal(first_weight(1), first_weight(1))
    assert not torch.equal(first_weight(1), first_weight(2))


def test_the_rate_follows_the_schedule_to_the_last_step(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), "schedule=linear", "schedule.warmup=2", "lr=0.5")
    parts = parts_of(recipe, samples, HERE)
    assert parts.steps == 12
    assert [parts.descent.rate(step) for step in (0, 1, 2, 7)] == [0.0, 0.25, 0.5, 0.25]


def test_a_run_too_short_for_its_warm_up_is_refused(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), "schedule.warmup=12")
    with pytest.raises(ConfigError, match="the warm-up takes 12 steps"):
        parts_of(recipe, samples, HERE)


def test_a_device_that_is_not_there_is_refused() -> None:
    assert device_of(override(Recipe(), ["device=cpu"])) == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch finds no cuda here"):
            device_of(override(Recipe(), ["device=cuda"]))


def test_the_workers_are_those_asked_for() -> None:
    assert workers_of(override(Recipe(), ["workers=3"])) == 3
    assert workers_of(override(Recipe(), ["device=cpu"])) == 0
