"""Recipes by name, and the one that fits the data where nobody named any."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vitral.core.errors import ConfigError, suggest_choice
from vitral.data.samples import Samples
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.augreg import augreg_imagenet, augreg_imagenet21k, plain_imagenet
from vitral.recipes.paper import (
    finetune_cifar,
    finetune_flowers,
    finetune_imagenet,
    finetune_vtab,
    paper_imagenet,
    paper_imagenet21k,
    paper_jft,
    paper_masked,
)
from vitral.recipes.recipe import Recipe
from vitral.recipes.small import (
    cifar10,
    fashion_finetune,
    fashion_masked,
    fashion_mnist,
    fashion_tenth,
    photos,
    sample,
    small_hundreds,
    small_thousands,
)

# For any model: the settings follow the model that is asked for.
ANY_MODEL: Mapping[str, Callable[..., Recipe]] = {
    family.__name__: family
    for family in (
        paper_imagenet, paper_imagenet21k, paper_jft, paper_masked, finetune_imagenet, finetune_cifar,
        finetune_flowers, finetune_vtab, photos, augreg_imagenet, augreg_imagenet21k, plain_imagenet,
    )
}  # fmt: skip
# For one kind of data, with the model that was tried on it.
FIXED_MODEL: Mapping[str, Callable[[], Recipe]] = {
    fixed.__name__: fixed
    for fixed in (
        sample, fashion_mnist, fashion_masked, fashion_finetune, fashion_tenth, cifar10, small_hundreds,
        small_thousands,
    )
}  # fmt: skip

# With given weights too these show images of the recipe's size, not of the size that the weights have seen.
KEEP_IMAGE_SIZE = ("finetune_imagenet", "finetune_cifar", "finetune_flowers", "finetune_vtab")

BY_DATASET = {
    "sample": sample,
    "digits": sample,
    "fashion-mnist": fashion_mnist,
    "mnist": fashion_mnist,
    "cifar10": cifar10,
}
HUNDREDS, THOUSANDS = 2_000, 200_000  # of training images, the most that a recipe is for


class RecipeChoice(NamedTuple):
    """A recipe that fits the data, and in one line why it is this one."""

    recipe: Recipe
    reason: str


def list_recipes() -> tuple[str, ...]:
    """Every recipe there is."""
    return (*FIXED_MODEL, *ANY_MODEL)


def get_recipe(name: str, model: str = "") -> Recipe:
    """The recipe of that name; with a model, that model for the recipe's images."""
    if name in ANY_MODEL:
        return ANY_MODEL[name](model) if model else ANY_MODEL[name]()
    if name not in FIXED_MODEL:
        hint = suggest_choice(name, list_recipes())
        raise ConfigError(f"unknown recipe {name!r}", code="config.unknown_name", where="recipe", hint=hint)
    recipe = FIXED_MODEL[name]()
    if not model:
        return recipe
    sizes = f"image_size={recipe.model.image_size}", f"channels={recipe.model.channels}"
    return recipe.model_copy(update={"model": model_config(model, *sizes)})


def choose_recipe(samples: Samples, start: Vit | Resnet | None = None) -> RecipeChoice:
    """The recipe that was made for this set, or else one for as many images as it has; `photos` for given weights.

    What was made for a set starts from fresh weights, and its rate would wipe out what others know.
    """
    images = len(samples.of("train"))
    if start is not None:
        chosen, why = photos(start), f"recipe photos, to fine-tune the given weights on {images:,} training images"
    elif samples.where in BY_DATASET:
        chosen = BY_DATASET[samples.where]()
        why = f"recipe {chosen.name}, which is for {samples.where}"
    elif images <= HUNDREDS:
        chosen, why = small_hundreds(), f"recipe small_hundreds, for {images:,} training images"
    elif images <= THOUSANDS:
        chosen, why = small_thousands(), f"recipe small_thousands, for {images:,} training images"
    else:
        chosen, why = plain_imagenet(), f"recipe plain_imagenet, for {images:,} training images"
    batch = max(1, min(chosen.batch_size, images))  # a batch cannot be larger than the set
    return RecipeChoice(chosen.model_copy(update={"batch_size": batch}), why)
