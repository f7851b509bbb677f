"""Old weights in a new model: another head, image size, number of channels, or fewer layers, and nothing else.

Weights for a stem of other channels, or for some of the layers.  D width, C channels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from vitral.core.config import Size, override
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.models.attention import BaseAttention
from vitral.models.base import Model, find_mismatches, raise_mismatches
from vitral.models.embed import Patches
from vitral.models.head import Classifier, HeadConfig, NoHead
from vitral.models.init import Original
from vitral.models.pool import AttentionPool
from vitral.models.position import GridDependent
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.load import LoadedModel

BLOCK_NAME = re.compile(r"blocks\.(\d+)\.(.+)")
POSITION_TABLES = (
    "position.table",
    "position.x",
    "position.y",
)  # where positions are added in every layer, one for each


def select_layers(weights: Mapping[str, Tensor], model: Vit, layers: Sequence[int]) -> dict[str, Tensor]:
    """The weights of a model that has these layers of the old one, counted from 0, in this order."""
    check_layers(layers, model.depth)
    check_windows(layers, model)
    places = {old: new for new, old in enumerate(layers)}
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        match = BLOCK_NAME.fullmatch(name)
        if name in POSITION_TABLES and len(tensor) == model.depth > 1:
            found[name] = tensor[list(layers)]
        elif match is None:
            found[name] = tensor
        elif int(match[1]) in places:
            found[f"blocks.{places[int(match[1])]}.{match[2]}"] = tensor
    return found


def check_layers(layers: Sequence[int], depth: int) -> None:
    """Refuse layers that are not there, or that are named twice."""
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer < depth for layer in layers):
        message = (
            f"expected some of the layers 0 to {depth - 1}, each once, got {', '.join(map(str, layers)) or 'none'}"
        )
        raise ConfigError(message, code="config.out_of_range", where="layers", hint="give for example 0,2,4")


def check_windows(layers: Sequence[int], model: Vit) -> None:
    """Refuse to put a layer where patches see others than those that it learned to look at."""
    if not isinstance(model.mixer, BaseAttention):
        return
    grid = model.layout(model.image_size).grid
    for new, old in enumerate(layers):
        if model.mixer.window(grid, new) != model.mixer.window(grid, old):
            message = f"layer {old} would become layer {new}, in which {model.mixer.kind} attention sees other patches"
            raise ConfigError(
                message, code="config.conflict", where="layers", hint="take rows and columns in turn: 0,1,4,5"
            )


def adapt_channels(weights: Mapping[str, Tensor], old: Vit | Resnet, channels: int) -> dict[str, Tensor]:
    """The weights of the first map for images of so many channels; all else is the caller's.

    One channel gets the sum of the old ones, which answers to a gray image as the old did to three equal channels.
    Several repeat the old ones in turn, scaled so that as much comes through.
    """
    if isinstance(old, Vit) and isinstance(old.stem, Patches):
        if old.stem.norm == "both":
            message = "the norm before the patches' map is over all channels together"
            raise ConfigError(
                message, code="config.unsupported", where="channels", hint=f"leave them at {old.channels}"
            )
        name, kernel = "stem.project.weight", weights["stem.project.weight"].unflatten(1, (old.channels, -1))
        return {name: adapt_kernel(kernel, channels).flatten(1)}  # (D, C P Q)
    name = "stem.body.root.0.weight" if isinstance(old, Vit) else "body.root.0.weight"
    return {name: adapt_kernel(weights[name], channels)}


def adapt_kernel(kernel: Tensor, channels: int) -> Tensor:
    """A kernel (D, C, ...) for another number of channels."""
    before = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    turns = [channel % before for channel in range(channels)]
    return kernel[:, turns] * (before / channels)


CONFIG_HINT = "build the model that the weights are of; only its head, image, channels and a smaller depth may differ"
ADAPTABLE = ("image_size", "channels")  # that a model takes while it stays what it is
# Fields that change no answer of the weights, or that a new run chooses anew.
FREE_FIELDS = (
    "image_size",
    "any_size",
    "channels",
    "head",
    "init",
    "memory",
    "tokens.dropout",
    "position.resampling",
    "block.drop_path_rate",
    "block.scale.init",
    "mixer.dropout",
    "mixer.attention_dropout",
    "mlp.dropout",
)


def load_pretrained(model: Model, source: LoadedModel) -> tuple[str, ...]:
    """Start a freshly built model from old weights, and tell what was done to them, a sentence each.

    The new head starts at zero (section 3.2 of the paper), positions are resampled to the grid of the new image size,
    the first map is summed or repeated for other channels, and of a deeper source the first layers are taken. What the
    source never learned, the pool and the head of masked patches, is left as it was built. All else must be the same;
    else nothing is changed and WeightsError tells each difference.
    """
    new, old = model.config, source.bundle.model
    fresh = ("head.", "pool.") if source.bundle.task == "masked_patches" else ("head.",)
    own = model.state_dict()
    weights = {name: tensor for name, tensor in source.model.state_dict().items() if not name.startswith(fresh)}
    faults = config_differences(old, new, fresh)
    resampled: dict[str, Tensor] = {}
    if not faults:
        weights = _fitted(weights, old, new)
        resampled = _regridded(model, weights, old)
    weights |= resampled
    weights |= {name: tensor for name, tensor in own.items() if name.startswith(fresh)}
    raise_mismatches(faults + find_mismatches(own, weights), "weights", CONFIG_HINT, "weights.config_mismatch")
    model.load_weights(weights)
    for part in model.head.modules():
        if isinstance(part, Classifier):
            part.initialize(Original())
    return tuple(_told(new, source, bool(resampled)))


class AdaptedModel(NamedTuple):
    """A model made from another, and what was done to it, a sentence each."""

    loaded: LoadedModel
    told: tuple[str, ...]


def adapt(source: LoadedModel, *settings: str, layers: Sequence[int] = (), classes: Sequence[str] = ()) -> AdaptedModel:
    """The same model for other images, or with some of its layers: `adapt(loaded, "image_size=384", layers=(0, 2, 4))`.

    Settings are `image` and `channels`. The head stays as it is; with names of classes there is a new one of zeros.
    """
    check_changes(settings)
    bundle = source.bundle
    old, told = bundle.model, []
    weights = dict(source.model.state_dict())
    if layers:
        if not isinstance(old, Vit):
            message = "a ResNet has no layers to choose from"
            raise ConfigError(message, code="config.unsupported", where="layers", hint="leave them out")
        weights = select_layers(weights, old, layers)
        told.append(f"layers {', '.join(map(str, layers))} of {old.depth} taken")
        old = old.model_copy(update={"depth": len(layers)})
    new = override(old, settings)
    frame = new.build_empty()
    weights = _fitted(weights, old, new)
    resampled = _regridded(frame, weights, old)
    frame.load_weights(weights | resampled)
    image = (
        new.image_size if new.image_size != old.image_size else bundle.preprocessing.image_size
    )  # DINOv2 shows others than its own
    needs = adapt_preprocessing(bundle.preprocessing, image, new.channels)
    frame.activation = bundle.activation
    made = LoadedModel(frame.eval(), bundle.model_copy(update={"model": new, "preprocessing": needs}))
    told += _told_of_images(old, new, bool(resampled))
    if classes:
        made = _with_classes(made, tuple(classes))
        told += _told_of_heads(old.head, made.bundle.model.head)
    return AdaptedModel(made, tuple(told))


def check_changes(settings: Sequence[str]) -> None:
    """Say of any other setting that weights are not adapted to it."""
    for name in (each.partition("=")[0] for each in settings):
        if name not in ADAPTABLE:
            message, hint = (
                "is not something that weights are adapted to",
                "change the image size and the channels alone",
            )
            raise ConfigError(message, code="config.unsupported", where=name, hint=hint)


def adapt_preprocessing(needs: Preprocessing, image: Size, channels: int) -> Preprocessing:
    """The preprocessing for another image size and number of channels, one mean for all if there were several."""
    scaling, decoding = needs.normalize, needs.decoding.model_copy(update={"channels": channels})
    if len(scaling.mean) not in {1, channels}:
        means, deviations = sum(scaling.mean) / len(scaling.mean), sum(scaling.std) / len(scaling.std)
        scaling = Normalize(mean=(means,), std=(deviations,))
    return needs.model_copy(update={"image_size": image, "normalize": scaling, "decoding": decoding})


def _with_classes(source: LoadedModel, classes: tuple[str, ...]) -> LoadedModel:
    """The model with a head of zeros for other classes."""
    model = override(source.bundle.model, ["head=linear", f"head.num_classes={len(classes)}"])
    fresh = model.build()
    load_pretrained(fresh, source)
    head = {"classes": classes, "task": "classify", "activation": "softmax"}
    bundle = source.bundle.model_copy(update={"model": model, **head})
    return LoadedModel(fresh.eval(), bundle)


def config_differences(old: Vit | Resnet, new: Vit | Resnet, fresh: tuple[str, ...]) -> list[str]:
    """The fields in which the models differ although the weights need them alike."""
    before, after = _leaves(old.model_dump(mode="json")), _leaves(new.model_dump(mode="json"))
    free = tuple(f"{name}." for name in FREE_FIELDS) + fresh
    fewer = ("depth",) if before.get("depth", 0) > after.get("depth", 0) else ()
    names = [name for name in before | after if not f"{name}.".startswith(free) and name not in fewer]
    return [
        f"{name} is {after.get(name, 'absent')}, and {before.get(name, 'absent')} in the weights"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _fitted(weights: dict[str, Tensor], old: Vit | Resnet, new: Vit | Resnet) -> dict[str, Tensor]:
    """The weights for fewer layers and other channels."""
    if isinstance(old, Vit) and isinstance(new, Vit) and new.depth < old.depth:
        weights = select_layers(weights, old, range(new.depth))
    return weights if new.channels == old.channels else weights | adapt_channels(weights, old, new.channels)


def _leaves(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Plain data by dotted name: `mixer.heads`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= _leaves(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def _regridded(model: Model, weights: Mapping[str, Tensor], old: Vit | Resnet) -> dict[str, Tensor]:
    """The weights that know places, resampled; none where the grid is the same."""
    grid = old.layout(old.image_size).grid
    if model.config.layout(model.config.image_size).grid == grid:
        return {}
    found: dict[str, Tensor] = {}
    for home, part in model.named_modules():
        if isinstance(part, GridDependent):
            mine = {name: weights[f"{home}.{name}"] for name in part.state_dict()}
            found |= {f"{home}.{name}": tensor for name, tensor in part.resample_weights(mine, grid).items()}
    return found


def _told(new: Vit | Resnet, source: LoadedModel, resampled: bool) -> Iterator[str]:
    """What was done, a sentence each."""
    old, masked = source.bundle.model, source.bundle.task == "masked_patches"
    if told := ", ".join(_told_of_heads(NoHead() if masked else old.head, new.head)):
        yield told
    if masked and isinstance(new, Vit) and isinstance(new.pool, AttentionPool):
        yield "the pool, which masked patches do not train, starts afresh"
    if isinstance(old, Vit) and isinstance(new, Vit) and new.depth < old.depth:
        yield f"the first {new.depth} of {old.depth} layers taken"
    yield from _told_of_images(old, new, resampled)


def _told_of_images(old: Vit | Resnet, new: Vit | Resnet, resampled: bool) -> Iterator[str]:
    if new.channels != old.channels:
        how = "summed" if new.channels == 1 else f"repeated and scaled by {old.channels / new.channels:.3g}"
        yield f"the stem's weights for {old.channels} channels {how} for {new.channels}"
    if resampled:
        yield f"positions resampled from {old.layout(old.image_size).grid} to {new.layout(new.image_size).grid}"


def _told_of_heads(old: HeadConfig, new: HeadConfig) -> Iterator[str]:
    if not isinstance(old, NoHead):
        yield f"head of {old.num_classes} classes dropped"
    if not isinstance(new, NoHead):
        message = (
            f"a new head of {new.num_classes} classes" if isinstance(old, NoHead) else f"a new one of {new.num_classes}"
        )
        yield f"{message} starts at zero"
        if new.bias:
            yield f"its bias at {new.bias:g}"
