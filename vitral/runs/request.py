"""Resolving a request: from what a user asks for to a complete recipe, its data and its weights."""

import os
from pathlib import Path
from typing import NamedTuple

from vitral.core.config import override
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.source import SAMPLE, open_data, open_images
from vitral.data.loading.sampler import subset
from vitral.data.samples import Samples
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.paper import nearest_image_size
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import KEEP_IMAGE_SIZE, choose_recipe, get_recipe
from vitral.weights.adapt import adapt_preprocessing
from vitral.weights.bundle import Bundle
from vitral.weights.hub import pinned_name
from vitral.weights.load import OpenedModel, open_model

# Short names of the settings that are changed most.
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
    """The complete recipe of a request, its data, why the recipe was chosen if none was named, and its weights."""

    recipe: Recipe
    samples: Samples
    reason: str
    source: OpenedModel | None  # the weights to start from


def resolve(request: RunRequest) -> ResolvedRun:
    """Complete the recipe and open its data and weights; invalid settings are found here, before any work."""
    settings = [expanded for setting in request.settings for expanded in _expand(setting)]
    recipe = get_recipe(request.recipe, request.model) if request.recipe else Recipe()
    early = [setting for setting in settings if setting.startswith(("task", "data.", "weights="))]
    start = override(_with_data(recipe, request), early)
    samples, reason = open_samples(start), ""
    source = open_model(start.weights) if start.weights else None
    bundle = source.loaded.bundle if source else None
    if not request.recipe:
        recipe, reason = choose_recipe(samples, bundle.model if bundle and start.task.labeled else None)
    recipe = recipe.model_copy(update={"model": _choose_model(recipe, request, bundle, settings)})
    if bundle:
        recipe = use_preprocessing_of(recipe, bundle)
        settings.append(f"weights={pinned_name(start.weights)}")
    recipe = override(_with_data(recipe, request), settings).with_classes(len(samples.classes))
    return ResolvedRun(recipe, samples, reason, source)


def _choose_model(recipe: Recipe, request: RunRequest, source: Bundle | None, settings: list[str]) -> Vit | Resnet:
    """The model that was named, or that of the weights, or that of the recipe, for the images of the run."""
    prefix = "model."
    sizes = [
        setting.removeprefix(prefix)
        for setting in settings
        if setting.startswith(("model.image_size=", "model.channels="))
    ]
    own_size = recipe.model.image_size
    if request.model and not request.recipe:
        return model_config(request.model, f"image_size={own_size}", f"channels={recipe.model.channels}", *sizes)
    if source and not request.model:
        size = source.preprocessing.image_size
        if request.recipe in KEEP_IMAGE_SIZE:
            size = nearest_image_size(source.model, own_size)
        return model_config(source.model, "head=linear", f"image_size={size}", *sizes)
    return recipe.model


def use_preprocessing_of(recipe: Recipe, source: Bundle) -> Recipe:
    """The recipe with the preprocessing of a bundle, at the recipe's own image size and channels."""
    needs = adapt_preprocessing(source.preprocessing, recipe.model.image_size, recipe.model.channels)
    images = recipe.images.model_copy(update={"eval_crop": needs.crop, "normalize": needs.normalize})
    return recipe.model_copy(update={"images": images})


def _with_data(recipe: Recipe, request: RunRequest) -> Recipe:
    """The recipe for the requested data. Local paths become absolute, since a run may be resumed from elsewhere."""
    path = Path(request.data).expanduser()
    is_name = request.data in NAMED_DATASETS or request.data == SAMPLE or not path.exists()
    where = request.data if is_name else os.path.abspath(path)
    root = os.path.abspath(Path(request.root).expanduser()) if request.root else ""
    data = recipe.data.model_copy(update={"path": where, "root": root})
    return recipe.model_copy(update={"data": data})


def open_samples(recipe: Recipe) -> Samples:
    """The images of a recipe."""
    open_ = open_data if recipe.task.labeled else open_images
    samples = open_(recipe.data.path, recipe.data.split, recipe.data.root)
    return subset(samples, recipe.data.fraction, recipe.data.split.seed) if recipe.data.fraction < 1 else samples


def _expand(setting: str) -> list[str]:
    """A setting by the full path of its field; the value goes to the last of several."""
    name, _, value = setting.partition("=")
    *before, last = SHORT_SETTINGS.get(name, ("",))
    return [*before, f"{last}{value}"] if last else [setting]
