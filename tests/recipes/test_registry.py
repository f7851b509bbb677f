import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import vitral
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.samples import Item, Samples
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.registry import model_config
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import ANY_MODEL, FIXED_MODEL, choose_recipe, get_recipe, list_recipes

NOTE = re.compile(r"\n    Run:     vitral train \S.*\n    Takes:   \S.*\n    Reaches: \S.*\n    $")


def photos(images: int, where: str = "photos") -> Samples:
    """A set of so many training images, none of which is ever read."""
    items = tuple(Item(f"{number}.jpg", number % 2, "train") for number in range(images))
    return replace(vitral.open_data("sample"), where=where, classes=("a", "b"), items=items)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_a_lab_note(name: str) -> None:
    note = {**FIXED_MODEL, **ANY_MODEL}[name].__doc__
    assert note
    assert NOTE.search(note)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_has_its_own_name_and_survives_its_json(name: str) -> None:
    recipe = get_recipe(name)
    assert recipe.name == name
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_builds_a_task_and_an_optimizer_of_its_weights(name: str) -> None:
    recipe = get_recipe(name).with_classes(2)
    task = recipe.task.build(recipe.model.build_empty(), 2, (5, 5), CENTERED)
    optimizer = recipe.optimizer.build(task)
    learning = [weight for weight in task.parameters() if weight.requires_grad]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(learning) > 10


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FIXED_MODEL)
def test_every_recipe_of_a_set_takes_its_images(name: str) -> None:
    recipe = get_recipe(name).with_classes(2)
    images = torch.randn(2, recipe.model.channels, *recipe.model.image_size)
    task = recipe.task.build(recipe.model.build(), 2, (5, 5), recipe.images.normalize)
    outcome = task(images, torch.tensor([0, 1]), np.random.default_rng(0))
    outcome.loss.backward()
    assert outcome.loss.isfinite()


def test_a_name_that_is_near_is_suggested() -> None:
    with raises("config.unknown_name", "'fashion-mnist'", "'fashion_mnist'"):
        get_recipe("fashion-mnist")


def test_a_family_follows_the_model_that_is_asked_for() -> None:
    assert get_recipe("paper_jft", "H/14").optimizer.lr == 3e-4
    assert get_recipe("paper_jft", "H/14").model.model_dump()["width"] == 1280


def test_a_recipe_of_a_set_has_any_model_for_the_images_of_the_set() -> None:
    model = get_recipe("cifar10", "S/4").model
    assert (model.image_size, model.channels) == (Size(32, 32), 3)
    assert model.model_dump()["width"] == 384
    assert get_recipe("sample", "Ti/14").model.channels == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("images", "name"),
    [
        (3, "small_hundreds"),
        (2_000, "small_hundreds"),
        (2_001, "small_thousands"),
        (50_000, "small_thousands"),
        (50_001, "small_hundred_thousands"),
        (500_001, "plain_imagenet"),
    ],
)
def test_the_number_of_images_chooses(images: int, name: str) -> None:
    recipe, why = choose_recipe(photos(images))
    assert recipe.name == name
    assert why == f"recipe {name}, for {images:,} training images"


def test_a_set_known_by_name_has_its_own_recipe() -> None:
    recipe, why = choose_recipe(photos(5_000, "fashion-mnist"))
    assert (recipe.name, why) == ("fashion_mnist", "recipe fashion_mnist, made for fashion-mnist")


@pytest.mark.parametrize(("images", "where"), [(40, "photos"), (300_000, "photos"), (5_000, "fashion-mnist")])
def test_given_weights_are_fine_tuned_whatever_the_set(images: int, where: str) -> None:
    recipe, why = choose_recipe(photos(images, where), model_config("S/16"))
    assert (recipe.name, recipe.batch_size) == ("photos", 32)
    assert why == f"recipe photos, to fine-tune the given weights on {images:,} training images"


def test_a_batch_is_never_larger_than_the_set() -> None:
    assert choose_recipe(photos(3)).recipe.batch_size == 3
