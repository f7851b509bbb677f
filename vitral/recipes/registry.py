"""Recipes by name, and the default recipe for a dataset."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from vitral.core.errors import ConfigError, suggest_choice
from vitral.data.samples import Samples
from vitral.models.registry import ModelLike, model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes import augreg, paper, photos, selfsupervised, small
from vitral.recipes.recipe import Recipe
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify

# For any model: the settings depend on the model.
ANY_MODEL: Mapping[str, Callable[..., Recipe]] = {
    family.__name__: family
    for family in (
        paper.paper_imagenet, paper.paper_imagenet21k, paper.paper_jft, paper.paper_masked, paper.finetune_imagenet,
        paper.finetune_cifar, paper.finetune_flowers, paper.finetune_vtab, photos.photos, augreg.augreg_imagenet,
        augreg.augreg_imagenet21k, augreg.plain_imagenet,
    )
}  # fmt: skip
# For one kind of data, with a model that was tuned on it.
FIXED_MODEL: Mapping[str, Callable[[], Recipe]] = {
    fixed.__name__: fixed
    for fixed in (
        small.sample, small.fashion_mnist, small.fashion_masked, small.fashion_finetune, small.fashion_tenth,
        small.cifar10, small.cifar100, photos.small_hundreds, small.small_thousands, small.small_hundred_thousands,
        *selfsupervised.FASHION_RECIPES.values(), *selfsupervised.CIFAR_RECIPES.values(),
        *selfsupervised.PHOTOS_RECIPES.values(),
    )
}  # fmt: skip

# These keep their own image size with given weights too; others take that of the weights.
KEEP_IMAGE_SIZE = ("finetune_imagenet", "finetune_cifar", "finetune_flowers", "finetune_vtab")

BY_DATASET = {
    "sample": small.sample,
    "digits": small.sample,
    "fashion-mnist": small.fashion_mnist,
    "mnist": small.fashion_mnist,
    "cifar10": small.cifar10,
    "cifar100": small.cifar100,
}
# Of training images, the most that a recipe is for.
HUNDREDS, THOUSANDS, HUNDRED_THOUSANDS = 2_000, 50_000, 500_000


class RecipeNote(NamedTuple):
    """The lab note of a recipe: what it is for, the command, how long it takes and what it reaches."""

    name: str
    purpose: str
    run: str
    takes: str
    reaches: str

    @property
    def measured(self) -> bool:
        """Whether its numbers were measured."""
        return not self.reaches.startswith("not measured")


class RecipeChoice(NamedTuple):
    """A recipe that fits the data, and the reason in one line."""

    recipe: Recipe
    reason: str


def list_recipes() -> tuple[str, ...]:
    """The names of all recipes."""
    return (*FIXED_MODEL, *ANY_MODEL)


def recipe_notes() -> tuple[RecipeNote, ...]:
    """The lab notes of all recipes, from their docstrings."""
    return tuple(
        _parse_note(name, inspect.getdoc(recipe) or "") for name, recipe in {**FIXED_MODEL, **ANY_MODEL}.items()
    )


def _parse_note(name: str, text: str) -> RecipeNote:
    """The first line of a docstring, and those that begin with `Run:`, `Takes:` and `Reaches:`."""
    found = dict(re.findall(r"^(Run|Takes|Reaches):\s+(.+)$", text, re.MULTILINE))
    return RecipeNote(name, text.partition("\n")[0], found["Run"], found["Takes"], found["Reaches"])


def get_recipe(name: str, model: ModelLike | None = None) -> Recipe:
    """The recipe of that name; with a model, that model for the recipe's images."""
    if name in ANY_MODEL:
        return ANY_MODEL[name](model_config(model)) if model else ANY_MODEL[name]()
    if name not in FIXED_MODEL:
        hint = suggest_choice(name, list_recipes())
        raise ConfigError(f"unknown recipe {name!r}", code="config.unknown_name", where="recipe", hint=hint)
    recipe = FIXED_MODEL[name]()
    if not model:
        return recipe
    sizes = {"image_size": recipe.model.image_size, "channels": recipe.model.channels}
    return recipe.model_copy(update={"model": model_config(model, sizes)})


def choose_recipe(
    samples: Samples,
    start: Vit | Resnet | None = None,
    task: TaskConfig = Classify(),  # noqa: B008, an immutable value
) -> RecipeChoice:
    """The recipe that was made for this dataset and task, or else for its number of images; `photos` for given weights.

    The recipe of a dataset trains from random weights: its learning rate would destroy pretrained ones.
    """
    images = len(samples.of("train"))
    purpose = f"for {images:,} training images"
    if not task.labeled:
        chosen = _without_labels(samples, task)
    elif start is not None:
        chosen, purpose = photos.photos(start), f"to fine-tune the given weights on {images:,} training images"
    elif samples.where in BY_DATASET:
        chosen, purpose = BY_DATASET[samples.where](), f"made for {samples.where}"
    elif images <= HUNDREDS:
        chosen = photos.small_hundreds()
    elif images <= THOUSANDS:
        chosen = small.small_thousands()
    elif images <= HUNDRED_THOUSANDS:
        chosen = small.small_hundred_thousands()
    else:
        chosen = augreg.plain_imagenet()
    return _for_images(chosen, images, purpose)


def _without_labels(samples: Samples, task: TaskConfig) -> Recipe:
    """The recipe of a task for this data; that of MAE or DINO for a task without one, by its number of views."""
    recipes = selfsupervised.BY_DATASET.get(samples.where, selfsupervised.PHOTOS_RECIPES)
    if task.kind in recipes:
        return recipes[task.kind]()
    return recipes["mae" if task.views == 1 else "dino"]().model_copy(update={"task": task})


def _for_images(chosen: Recipe, images: int, purpose: str) -> RecipeChoice:
    batch = max(1, min(chosen.batch_size, images))  # a batch cannot be larger than the set
    return RecipeChoice(chosen.model_copy(update={"batch_size": batch}), f"recipe {chosen.name}, {purpose}")
