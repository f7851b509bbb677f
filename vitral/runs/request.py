"""Resolving a request: from what a user asks for to a complete recipe, its data and its weights."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from vitral.core.config import Config, Size, override
from vitral.core.custom import is_reference
from vitral.core.documents import is_document
from vitral.core.errors import ConfigError, DataError
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.source import SAMPLE, open_data, open_images
from vitral.data.datasets.torch_dataset import DatasetStore, gives_tensors, open_dataset, open_dataset_class
from vitral.data.loading.sampler import hold_out, subset
from vitral.data.samples import OnFault, Samples, StratifiedSplit, refuse
from vitral.data.transforms.preprocessing import Normalize
from vitral.data.transforms.views import MultiCrop
from vitral.models.base import nearest_multiple
from vitral.models.registry import ModelLike, model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.paper import nearest_image_size
from vitral.recipes.recipe import DataConfig, Images, Recipe, load_recipe
from vitral.recipes.registry import KEEP_IMAGE_SIZE, choose_recipe, get_recipe
from vitral.runs.options import RUN_OPTIONS, TrainOptions
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify
from vitral.training.finetune import Staged
from vitral.training.optimizers import ScheduleFreeAdamW
from vitral.weights.adapt import adapt_preprocessing
from vitral.weights.bundle import Bundle
from vitral.weights.create import is_name_of
from vitral.weights.formats.pretraining import inferred_settings, read_training_parts
from vitral.weights.hub import pinned_name
from vitral.weights.load import OpenedModel, open_model
from vitral.weights.reader import ReadOptions

log = logging.getLogger("vitral")

DATA_SETTINGS = (
    "task",
    "data",
    "weights",
    "weights_options",
    "root",
    "images.lenient",
    "images.max_pixels",
)  # which are needed to open the data and the weights
HELD_OUT = 0.2  # of the training images, where the stages of fine-tuning need validation images and there are none
SMALL_VIEW = 96 / 224  # side of a small view by that of the image
OBJECT = "a Dataset object: "  # how the path of a recipe begins whose data was passed as an object


class RunRequest(NamedTuple):
    """What a user asks for: data, perhaps a recipe and a model, and settings by path."""

    data: str | Path | Dataset[Any] = ""
    val: Dataset[Any] | None = None
    recipe: str | Path | Recipe = ""
    model: str | Path | Vit | Resnet = ""
    settings: Mapping[str, object] = {}


class ResolvedRun(NamedTuple):
    """The complete recipe of a request, its data, why the recipe was chosen if none was named, and its weights."""

    recipe: Recipe
    samples: Samples
    reason: str
    source: OpenedModel | None  # the weights to start from


def request_from_options(
    data: str | Path | Dataset[Any],
    val: Dataset[Any] | None,
    recipe: str | Path | Recipe,
    model: ModelLike,
    options: TrainOptions,
) -> RunRequest:
    """The request of a call of `train` or `check`; `settings` come after the other options."""
    settings = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    return RunRequest(data, val, recipe, model, {**settings, **options.get("settings", {})})


def resolve(request: RunRequest, samples: Samples | None = None) -> ResolvedRun:
    """Complete the recipe and open its data and weights; invalid settings are found here, before any work.

    `samples` is the data of the request if it is already open.
    """
    settings = _for_optimizer(_expand(request.settings))
    given = _given_recipe(request)
    start = data_recipe(request)
    samples, reason = samples or open_samples(start, request), ""
    source = open_model(start.weights, options=start.weights_options) if start.weights else None
    bundle = source.loaded.bundle if source else None
    recipe = given
    if recipe is None:
        recipe, reason = choose_recipe(samples, bundle.model if bundle else None, start.task)
    complete = isinstance(request.recipe, Recipe) or is_document(request.recipe)  # its own fields hold
    if not (complete and "model" in recipe.model_fields_set) or request.model:
        chosen = _choose_model(recipe, request, bundle, settings)
        images = recipe.images if complete else _fit_small_views(recipe, chosen)
        recipe = recipe.model_copy(update={"model": chosen, "images": images})
    if bundle and not (complete and "images" in recipe.model_fields_set):
        recipe = use_preprocessing_of(recipe, bundle)
    if bundle:
        settings["weights"] = pinned_name(start.weights)
    if source and reason and isinstance(recipe.model, Vit):
        parts = read_training_parts(start.task.kind, source.file)
        settings = (inferred_settings(start.task.kind, recipe.model, parts) if parts else {}) | settings
    if gives_tensors(samples.store):
        settings = _for_tensors(samples.store, settings)
    recipe = override(_with_data(recipe, request), settings).with_classes(len(samples.classes))
    if isinstance(recipe.finetune, Staged) and not samples.of("val"):  # test images choose no stage
        held = recipe.data.model_copy(update={"hold_out": HELD_OUT})
        recipe = recipe.model_copy(update={"data": held})
        samples = open_samples(recipe, request)
        if reason:  # the batch size was chosen, too
            recipe = recipe.model_copy(update={"batch_size": min(recipe.batch_size, len(samples.of("train")))})
    return ResolvedRun(recipe, samples, reason, source)


class _Inputs(Config):
    """What is needed of a recipe to open its data and weights."""

    task: TaskConfig = Classify()
    data: DataConfig = DataConfig()
    weights: str = ""
    weights_options: ReadOptions = ReadOptions()
    images: Images = Images()


def data_recipe(request: RunRequest) -> Recipe:
    """The recipe of a request with the settings that are needed to open its data and weights, and no others.

    Whether these fit its model is not asked: that of the run may be chosen once the data and the weights are open.
    """
    settings = _expand(request.settings)
    base = _with_data(_given_recipe(request) or Recipe(), request)
    needed = tuple(f"{name}." for name in DATA_SETTINGS)
    inputs = _Inputs(**{name: getattr(base, name) for name in _Inputs.model_fields})
    inputs = override(inputs, {path: value for path, value in settings.items() if f"{path}.".startswith(needed)})
    return base.model_copy(update={name: getattr(inputs, name) for name in _Inputs.model_fields})


def _for_tensors(store: DatasetStore, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings for float tensors of a dataset: their size, and no transforms of ours."""
    assert store.tensor_shape is not None
    channels, *size = store.tensor_shape
    asked = settings.get("image_size", settings.get("model.image_size", tuple(size)))
    if Size.parse(asked) != Size(*size):
        message = f"the dataset gives tensors of {Size(*size)}, which are used as they are, not of {Size.parse(asked)}"
        hint = "resize in the dataset's transform, or let it return PIL images"
        raise ConfigError(message, code="config.conflict", where="image_size", hint=hint)
    plain = {"model.image_size": size, "model.channels": channels, "images.external": True}
    return {**settings, **plain, "images.augment": [], "images.normalize": Normalize()}


def _for_optimizer(settings: dict[str, object]) -> dict[str, object]:
    """The settings with the optimizer first, since it resets its fields, and with what it needs of the others.

    `--lr 0.01 --set optimizer=muon` has the learning rate that was given.
    """
    if "optimizer" in settings:
        settings = {"optimizer": settings["optimizer"]} | settings
    chosen = settings.get("optimizer")
    kind = chosen.get("kind") if isinstance(chosen, Mapping) else getattr(chosen, "kind", chosen)
    if kind != ScheduleFreeAdamW().kind:
        return settings
    needed = {"schedule": "constant", "average": "none"}
    if added := {path: value for path, value in needed.items() if path not in settings}:
        text = " and ".join(f"{path}={value}" for path, value in added.items())
        log.info(f"{kind} needs {text}: set; the warmup stays")
    return added | settings


def _given_recipe(request: RunRequest) -> Recipe | None:
    """The recipe that was given: an object, a JSON or YAML file, or a name."""
    if isinstance(request.recipe, Recipe):
        return request.recipe
    if is_document(request.recipe):
        return load_recipe(Path(request.recipe).expanduser())
    if not request.recipe:
        return None
    return get_recipe(str(request.recipe), request.model or None)


def _choose_model(
    recipe: Recipe, request: RunRequest, source: Bundle | None, settings: Mapping[str, object]
) -> Vit | Resnet:
    """The model that was asked for, or that of the weights, or that of the recipe, for the images of the run.

    A name such as S/14 says the size of a model. Weights of that size may differ in what a name does not say, such as
    the scales of DINOv2, and the model is theirs.
    """
    names = ("image_size", "channels")
    sizes = {name: settings[path] for name in names for path in (name, f"model.{name}") if path in settings}
    own = {"image_size": recipe.model.image_size, "channels": recipe.model.channels}
    named = isinstance(request.recipe, str) and request.recipe and not is_document(request.recipe)
    if request.model and named:  # the recipe was made for the model
        return recipe.model
    if request.model and not (source and is_name_of(request.model, source.model)):
        return model_config(request.model, own | sizes)
    if source:
        size = source.preprocessing.image_size
        if recipe.name in KEEP_IMAGE_SIZE:
            size = nearest_image_size(source.model, recipe.model.image_size)
        return model_config(source.model, {"head": "linear", "head.temperature": 1, "image_size": size} | sizes)
    return recipe.model


def _fit_small_views(recipe: Recipe, model: Vit | Resnet) -> Images:
    """The images of a recipe for another model: its small views have three sevenths of the side, as in DINO."""
    views, old = recipe.images.views, recipe.model
    if not isinstance(views, MultiCrop) or (model.image_size, model.token_size()) == (old.image_size, old.token_size()):
        return recipe.images
    size = nearest_multiple(Size(*(round(side * SMALL_VIEW) for side in model.image_size)), model.token_size())
    local = views.local.model_copy(update={"size": size})
    return recipe.images.model_copy(update={"views": views.model_copy(update={"local": local})})


def use_preprocessing_of(recipe: Recipe, source: Bundle) -> Recipe:
    """The recipe with the preprocessing of a bundle, at the recipe's own image size and channels."""
    needs = adapt_preprocessing(source.preprocessing, recipe.model.image_size, recipe.model.channels)
    images = recipe.images.model_copy(update={"eval_crop": needs.crop, "normalize": needs.normalize})
    return recipe.model_copy(update={"images": images})


def _with_data(recipe: Recipe, request: RunRequest) -> Recipe:
    """The recipe for the requested data. Local paths become absolute, since a run may be resumed from elsewhere."""
    if isinstance(request.data, Dataset):
        where = OBJECT + type(request.data).__name__
    elif not (text := str(request.data)):
        if not recipe.data.path:
            hint = "give a folder of images, or sample"
            raise ConfigError("no data given", code="config.missing_value", where="data", hint=hint)
        return recipe
    else:
        path = Path(text).expanduser()
        is_name = text in NAMED_DATASETS or text == SAMPLE or not path.exists()
        where = text if is_name else os.path.abspath(path)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": where, "root": ""})})


def open_samples(
    recipe: Recipe,
    request: RunRequest = RunRequest(),  # noqa: B008, an immutable value
    on_fault: OnFault = refuse,
) -> Samples:
    """The images of a recipe; structural faults of files go to `on_fault`."""
    data = recipe.data
    if isinstance(request.data, Dataset):
        samples = open_dataset(request.data, request.val, data.split)
    elif data.path.startswith(OBJECT):
        message = f"the run was trained on {data.path}, which is not on disk"
        hint = "pass the object: vitral.resume(RUN, data=DATASET), or vitral.train(DATASET, recipe=...)"
        raise DataError(message, code="data.needs_object", where="data", hint=hint)
    elif is_reference(data.path):
        samples = open_dataset_class(data.path, data.options, data.split)
    else:
        open_ = open_data if recipe.task.labeled else open_images
        samples = open_(data.path, data.split, data.root, on_fault)
    if data.hold_out:
        samples = hold_out(samples, StratifiedSplit(fraction=data.hold_out, seed=data.split.seed))
    return subset(samples, data.fraction, data.split.seed) if data.fraction < 1 else samples


def _expand(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings by path, with short names written out; of `epochs` and `steps` the last one counts."""
    found: dict[str, object] = {}
    for path, value in settings.items():
        if path in {"epochs", "steps"}:
            found = {other: given for other, given in found.items() if other.partition(".")[0] != "length"}
            found |= {"length": path, f"length.{path}": value}
        elif path == "root":
            found[f"data.{path}"] = os.path.abspath(Path(str(value)).expanduser()) if value else ""
        elif path == "hold_out":
            found[f"data.{path}"] = value
        elif path in {"lenient", "max_pixels"}:
            found[f"images.{path}"] = value
        elif path in {"arch", "weights_key", "allow_pickle"}:
            found[f"weights_options.{path}"] = value
        else:
            found["weights" if path == "from" else path] = value
    return found
