import json
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.errors import raises
from vitral.core.config import Size, override
from vitral.data.loading.sampler import SamplingPlan, Shuffled
from vitral.data.transforms.crop import RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.data.transforms.views import MultiCrop, TwoViews, View
from vitral.models.head import LinearHead, NoHead
from vitral.models.vit import Vit
from vitral.recipes.recipe import (
    Epochs,
    Images,
    ImagesSeen,
    LengthConfig,
    NoEarlyStopping,
    Patience,
    Recipe,
    Steps,
    read_recipe,
)
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.training.clip import PerParameterClip

PLAN = SamplingPlan(np.zeros(25, dtype=np.int64), Shuffled(), batch_size=10, seed=0)  # two steps an epoch


def test_a_recipe_survives_its_json() -> None:
    recipe = override(
        Recipe(), ["task=masked_patches", "optimizer=sgd", "early_stopping=patience", "length=steps", "workers=3"]
    )
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (Epochs(epochs=3), 6),
        (Epochs(epochs=1.5), 3),
        (Epochs(epochs=0.1), 1),
        (Steps(steps=7), 7),
        (ImagesSeen(images=75), 10),  # no fewer than five epochs
        (ImagesSeen(images=250), 20),
        (ImagesSeen(images=75, min_epochs=1), 6),
        (ImagesSeen(images=10_000, max_epochs=8), 16),
    ],
)
def test_a_length_is_a_number_of_steps(length: LengthConfig, steps: int) -> None:
    assert length.total_steps(PLAN) == steps


@pytest.mark.parametrize(
    ("settings", "where"),
    [((), "schedule"), (("schedule=linear",), "schedule"), (("schedule=constant", "average=ema"), "average")],
)
def test_an_optimizer_without_a_schedule_takes_none(settings: tuple[str, ...], where: str) -> None:
    with raises("config.conflict", where) as caught:
        override(Recipe(), ["optimizer=schedule_free_adamw", *settings])
    assert caught.value.where == where
    override(Recipe(), ["optimizer=schedule_free_adamw", "schedule=constant"])


def test_the_fewest_epochs_are_not_more_than_the_most() -> None:
    with raises("config.conflict", "min_epochs", 9, 3):
        ImagesSeen(min_epochs=9, max_epochs=3)


def test_a_recipe_of_before_there_was_tuning_trains_everything() -> None:
    data = Recipe().model_dump(mode="json")
    assert data.pop("finetune") == {"kind": "full"}
    assert Recipe.parse(data) == Recipe()


def test_training_and_evaluation_differ_in_their_view_alone() -> None:
    recipe = Recipe(
        model=Vit(image_size=Size(32, 32), channels=1), images=Images(crop=RandomResizedCrop(area=(0.5, 1)))
    )
    training, still, needs = recipe.train_pipeline(), recipe.eval_pipeline(), recipe.preprocessing()
    assert training.crop == RandomResizedCrop(area=(0.5, 1))
    assert still.crop == needs.crop == Resize()
    assert training.image_size == still.image_size == needs.image_size == Size(32, 32)
    assert training.decoding == still.decoding == needs.decoding
    assert needs.decoding.channels == 1


def test_the_head_follows_the_data_and_the_task() -> None:
    assert Recipe().with_classes(7).model.head == LinearHead(num_classes=7)
    assert override(Recipe(), ["task=masked_patches"]).with_classes(7).model.head == NoHead()


def test_a_scaling_of_three_channels_does_not_fit_gray_images() -> None:
    with raises("config.conflict", "images.normalize", 3, 1):
        Recipe(model=Vit(channels=1), images=Images(normalize=IMAGENET))


def test_patience_ends_only_where_it_was_asked_for() -> None:
    assert not NoEarlyStopping().should_stop(1_000)
    assert [Patience(evaluations=3).should_stop(count) for count in (0, 2, 3, 4)] == [False, False, True, True]


def test_a_recipe_of_an_earlier_format_keeps_its_pixels() -> None:
    old = json.loads(Recipe().to_json())
    del old["images"]["jpeg_scale"]
    assert read_recipe(json.dumps(old | {"format": 3}).encode()).images.jpeg_scale == "smallest"
    assert read_recipe(json.dumps(old).encode()).images.jpeg_scale == "triple"
    assert Recipe().preprocessing().decoding.jpeg_scale == "triple"


def test_masked_patches_of_an_older_recipe_are_drawn_as_they_were() -> None:
    old = json.loads(Recipe(task=MaskedPatches()).to_json())
    del old["task"]["draws"]
    for number, draws in ((4, "by_process"), (5, "by_image")):
        task = read_recipe(json.dumps(old | {"format": number}).encode()).task
        assert isinstance(task, MaskedPatches)
        assert task.draws == draws
    assert read_recipe(json.dumps({"format": 4}).encode()) == Recipe()  # other tasks have no such field


@pytest.mark.parametrize("format", [0, -1, 99, "4", 2.5, True, None])
def test_a_recipe_of_a_format_that_nobody_wrote_is_refused(format: object) -> None:
    with raises("config.unknown_name", "format"):
        read_recipe(json.dumps({"format": format}).encode())


class Coupled(Classify):
    """A task of two views whose loss depends on the whole batch."""

    views: ClassVar[int] = 2

    def batch_dependence(self) -> str:
        return "its images are compared with each other"


TWO = Images(views=TwoViews())


def test_a_loss_of_the_whole_batch_is_not_split() -> None:
    assert Recipe(task=Coupled(), images=TWO).microbatches == 1
    with raises("config.needs_whole_batch", "microbatches", "compared with each other"):
        Recipe(task=Coupled(), images=TWO, microbatches=2)


def test_a_task_gets_as_many_views_as_it_compares() -> None:
    conflicts: list[dict[str, Any]] = [
        {"task": Coupled()},
        {"task": Classify(), "images": TWO},
        {"task": Coupled(), "images": Images(views=TwoViews(), external=True)},
    ]
    for given in conflicts:
        with raises("config.conflict", "images.views"):
            Recipe(**given)


def test_views_have_the_size_of_the_model_or_their_own_and_evaluation_has_them_too() -> None:
    views = MultiCrop(local=View(size=Size(16, 24)), local_views=3)
    recipe = Recipe(task=Coupled(), images=Images(views=views), model=Vit(image_size=Size(32, 48)))
    for pipeline in (recipe.train_pipeline(), recipe.eval_pipeline()):
        assert [view.image_size for view in pipeline.views] == [Size(32, 48)] * 2 + [Size(16, 24)] * 3
        assert [group.shape for group in pipeline.empty_batch(5)] == [(5, 2, 3, 32, 48), (5, 3, 3, 16, 24)]
    assert Recipe().train_pipeline().views == ()


def test_clipping_each_parameter_comes_back_from_json() -> None:
    recipe = Recipe(clip=PerParameterClip(max_norm=2.0))
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert override(Recipe(), {"clip": PerParameterClip()}).clip == PerParameterClip(max_norm=3.0)


def test_no_weight_decay_follows_no_schedule() -> None:
    settings = ["optimizer.decay_schedule=cosine", "optimizer.weight_decay=0"]
    with raises("config.conflict", "optimizer.decay_schedule"):
        override(Recipe(), settings)
    assert override(Recipe(), settings[:1]).optimizer.decay_schedule.kind == "cosine"
