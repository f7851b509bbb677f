"""From what a user asks for to a recipe, resolved to the last field."""

import os
from pathlib import Path
from typing import NamedTuple

from vitral.core.config import override
from vitral.data.datasets.named import NAMED
from vitral.data.datasets.source import SAMPLE, open_data, open_images
from vitral.data.loading.sampler import subset
from vitral.data.samples import Samples
from vitral.models.registry import model_config
from vitral.recipes.paper import nearest_image_size
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import KEEP_IMAGE_SIZE, choose_recipe, get_recipe
from vitral.weights.adapt import adapt_preprocessing
from vitral.weights.bundle import Bundle
from vitral.weights.hub import pinned_name
from vitral.weights.load import open_model

# Settings that most people change, by the names that they know.
SHORT_SETTINGS = {
    "epochs": ("length=epochs", "length.epochs="),
    "steps": ("length=steps", "length.steps="),
    "image_size": ("model.image_size=",),
    "lr": ("optimizer.lr=",),
    "from": ("weights=",),
}


class RunRequest(NamedTuple):
    """What a user asks for: data, perhaps a recipe and a model by name, and settings such as `epochs=5`."""

    data: str
    settings: tuple[str, ...] = ()
    recipe: str = ""
    model: str = ""
    root: str = ""


class ResolvedRun(NamedTuple):
    """The recipe that a wish comes to, its data, and why it is this one if nobody named it."""

    recipe: Recipe
    samples: Samples
    why: str


def resolve(wish: RunRequest) -> ResolvedRun:
    """The recipe and its data; what is wrong with a setting is found here, before any work is done."""
    settings = [each for setting in wish.settings for each in _expand(setting)]
    base = get_recipe(wish.recipe, wish.model) if wish.recipe else Recipe()
    early = override(_with_data(base, wish), [each for each in settings if each.startswith(("task", "data.", "weights="))])
    samples, why = open_samples(early), ""
    source = open_model(early.weights).loaded.bundle if early.weights else None
    if not wish.recipe:
        chosen = choose_recipe(samples, source.model if source and early.task.labeled else None)
        base, why = chosen.recipe, chosen.why
    sizes = [
        each.removeprefix("model.") for each in settings if each.startswith(("model.image_size=", "model.channels="))
    ]
    if wish.model and not wish.recipe:
        own = f"image_size={base.model.image_size}", f"channels={base.model.channels}"
        base = base.model_copy(update={"model": model_config(wish.model, *own, *sizes)})
    elif source and not wish.model:
        nearest = nearest_image_size(source.model, base.model.image_size)
        large = [f"image_size={nearest}"] if wish.recipe in KEEP_IMAGE_SIZE else []
        size = f"image_size={source.preprocessing.image_size}"
        base = base.model_copy(update={"model": model_config(source.model, "head=linear", size, *large, *sizes)})
    if source:
        base = use_preprocessing_of(base, source)
        settings.append(f"weights={pinned_name(early.weights)}")
    return ResolvedRun(override(_with_data(base, wish), settings).fitted(len(samples.classes)), samples, why)


def use_preprocessing_of(recipe: Recipe, source: Bundle) -> Recipe:
    """The recipe, seeing images as the model of a bundle did, in the size and the channels of its own."""
    needs = adapt_preprocessing(source.preprocessing, recipe.model.image_size, recipe.model.channels)
    images = recipe.images.model_copy(update={"eval_crop": needs.crop, "normalize": needs.normalize})
    return recipe.model_copy(update={"images": images})


def _with_data(recipe: Recipe, wish: RunRequest) -> Recipe:
    """The recipe for the data that is wished for, a path on this machine in full: it may be resumed from elsewhere."""
    path = Path(wish.data).expanduser()
    known = wish.data in NAMED or wish.data == SAMPLE or not path.exists()
    where = wish.data if known else os.path.abspath(path)
    root = os.path.abspath(Path(wish.root).expanduser()) if wish.root else ""
    data = recipe.data.model_copy(update={"path": where, "root": root})
    return recipe.model_copy(update={"data": data})


def open_samples(recipe: Recipe) -> Samples:
    """The images of a recipe."""
    open_ = open_data if recipe.task.labeled else open_images
    samples = open_(recipe.data.path, recipe.data.split, recipe.data.root)
    return subset(samples, recipe.data.fraction, recipe.data.split.seed) if recipe.data.fraction < 1 else samples


def _expand(setting: str) -> list[str]:
    """A setting by the names of the recipe's fields; a value goes to the last of them."""
    name, _, value = setting.partition("=")
    *before, last = SHORT_SETTINGS.get(name, ("",))
    return [*before, f"{last}{value}"] if last else [setting]
