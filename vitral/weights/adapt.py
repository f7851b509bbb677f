"""Adapt weights to another head, image size, patch size, number of channels, or to a subset of the layers.

D width, C channels, P x Q pixels a patch, p x q pixels a patch before.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.core.config import Size, override
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.models.attention import BaseAttention
from vitral.models.base import Model, find_mismatches, raise_mismatches
from vitral.models.embed import Palette, Patches, ShiftedPatches, kernel_to_linear, linear_to_kernel
from vitral.models.head import Classifier, HeadConfig, NoHead
from vitral.models.init import Original
from vitral.models.pool import AttentionPool
from vitral.models.position import GridDependent
from vitral.models.registry import SizeLike
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.load import LoadedModel, stretch_message

BLOCK_NAME = re.compile(r"blocks\.(\d+)\.(.+)")
POSITION_TABLES = ("position.table", "position.x", "position.y")  # one entry per layer if added in every layer


def select_layers(weights: Mapping[str, Tensor], model: Vit, layers: Sequence[int]) -> dict[str, Tensor]:
    """The weights of a model with these layers, counted from 0, in this order."""
    check_layers(layers, model.depth)
    check_windows(layers, model)
    index = {old: new for new, old in enumerate(layers)}
    selected: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        match = BLOCK_NAME.fullmatch(name)
        if name in POSITION_TABLES and len(tensor) == model.depth > 1:
            selected[name] = tensor[list(layers)]
        elif match is None:
            selected[name] = tensor
        elif int(match[1]) in index:
            selected[f"blocks.{index[int(match[1])]}.{match[2]}"] = tensor
    return selected


def check_layers(layers: Sequence[int], depth: int) -> None:
    """Reject layers that do not exist or are repeated."""
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer < depth for layer in layers):
        message = f"expected layers from 0 to {depth - 1}, each once, got {', '.join(map(str, layers)) or 'none'}"
        raise ConfigError(message, code="config.out_of_range", where="layers", hint="for example 0,2,4")


def check_windows(layers: Sequence[int], model: Vit) -> None:
    """Reject a layer whose attention window would differ at its new index."""
    if not isinstance(model.mixer, BaseAttention):
        return
    grid = model.layout(model.image_size).grid
    for new, old in enumerate(layers):
        if model.mixer.window(grid, new) != model.mixer.window(grid, old):
            message = f"layer {old} would become layer {new}, where {model.mixer.kind} attention has another window"
            hint = "alternate rows and columns: 0,1,4,5"
            raise ConfigError(message, code="config.conflict", where="layers", hint=hint)


# Of the stems whose first layer is a convolution of the image.
FIRST_KERNELS = {
    "hybrid": "stem.body.root.0.weight",
    "convolutions": "stem.layers.0.conv.weight",
    "overlapping_patches": "stem.project.weight",
}


def adapt_channels(weights: Mapping[str, Tensor], old: Vit | Resnet, channels: int) -> dict[str, Tensor]:
    """The weights of the first layer for another number of channels.

    One channel is the sum of the old ones, so a gray image gives what three equal channels gave. More channels repeat
    the old ones in turn, scaled to keep the magnitude (as in timm).
    """
    if isinstance(old, Resnet):
        name = "body.root.0.weight"
    elif isinstance(old.stem, ShiftedPatches) or (isinstance(old.stem, Patches) and old.stem.norm == "both"):
        message, hint = "the norm before the patch embedding spans all channels", f"keep {old.channels}"
        raise ConfigError(message, code="config.unsupported", where="channels", hint=hint)
    elif isinstance(old.stem, Palette):
        message, hint = "the palette has colors of its own channels", f"keep {old.channels}"
        raise ConfigError(message, code="config.unsupported", where="channels", hint=hint)
    elif isinstance(old.stem, Patches):
        name, kernel = "stem.project.weight", weights["stem.project.weight"].unflatten(1, (old.channels, -1))
        return {name: adapt_kernel(kernel, channels).flatten(1)}  # (D, C P Q)
    else:
        name = FIRST_KERNELS[old.stem.kind]
    return {name: adapt_kernel(weights[name], channels)}


def adapt_kernel(kernel: Tensor, channels: int) -> Tensor:
    """A kernel (D, C, ...) for another number of channels."""
    before = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [channel % before for channel in range(channels)]] * (before / channels)


def resize_patches(kernel: Tensor, patch: Size) -> Tensor:
    """The kernel (D, C, p, q) for patches of another size, by the pseudo-inverse (FlexiViT, arXiv 2212.08013).

    With R the bilinear resize of a patch, w becomes pinv(R') w: the weights whose products with resized patches are
    nearest to those of w with the patches, in the mean of squares over white noise. They are equal where no side gets
    smaller. The resize is that of FlexiViT's code: pixels have their centers at one half, and no antialias.
    """
    if tuple(kernel.shape[2:]) == tuple(patch):
        return kernel
    rows, columns = (
        torch.linalg.pinv(_resize_matrix(old, new).mT) for old, new in zip(kernel.shape[2:], patch, strict=True)
    )  # (P, p) and (Q, q): R is their Kronecker product, and so is its inverse
    return (rows @ kernel.double() @ columns.mT).to(kernel.dtype)  # (D, C, P, Q)


def _resize_matrix(old: int, new: int) -> Tensor:
    """The linear resize of one side: each unit vector of the old length, resized."""
    units = torch.eye(old, dtype=torch.float64)
    return F.interpolate(units[None], size=new, mode="linear", align_corners=False)[0].mT  # (new, old)


def patches_can_be_resized(model: Vit | Resnet) -> bool:
    """Whether the first layer is linear in the pixels of a patch."""
    return isinstance(model, Vit) and isinstance(model.stem, Patches) and model.stem.norm != "both"


CONFIG_HINT = (
    "use the architecture of the weights; only head, image_size, channels, the size of plain patches "
    "and a smaller depth may differ"
)
# Options of a model, and what `adapt` calls them.
ADAPTABLE = {"image_size": "image_size", "channels": "channels", "patch": "patch", "stem.patch": "patch"}
# Fields that do not affect what the weights compute, or that a new run chooses.
FREE_FIELDS = (
    "image_size",
    "any_size",
    "channels",
    "head",
    "init",
    "memory",
    "stem.remainder",
    "tokens.dropout",
    "position.resampling",
    "block.drop_path_rate",
    "block.drop_path_schedule",
    "block.drop_path_mode",
    "block.scale.init",
    "mixer.dropout",
    "mixer.attention_dropout",
    "mlp.dropout",
    "mlp.hidden_dropout",
)


TRAINING_FIELDS = ("dropout", "drop_path_rate")  # ends of paths
UNIMPORTANT = ("any_size", "init", "init.kind", "memory", "position.resampling", "block.scale.init", "head.bias")


def load_pretrained(model: Model, source: LoadedModel) -> tuple[str, ...]:
    """Initialize a new model from pretrained weights; returns messages about what was adapted.

    The head starts at zero (section 3.2 of the paper), positions are resampled to the new grid, the first layer is
    summed or repeated for other channels and resized for other patches, and the first layers of a deeper source are
    taken. The pool and head of a masked-patches source were not trained and stay as built. Any other difference raises
    WeightsError.
    """
    new, old = model.config, source.bundle.model
    fresh = ("head.", "pool.") if source.bundle.task == "masked_patches" else ("head.",)
    own = model.state_dict()
    weights = {name: tensor for name, tensor in source.model.state_dict().items() if not name.startswith(fresh)}
    patch = ("stem.patch.",) if patches_can_be_resized(old) and patches_can_be_resized(new) else ()
    faults = config_differences(old, new, fresh + patch)
    weights = weights if faults else _adapt_tensors(weights, old, new)
    resampled = {} if faults else _resample_positions(model, weights, old)
    weights = weights | resampled | {name: tensor for name, tensor in own.items() if name.startswith(fresh)}
    raise_mismatches(faults + find_mismatches(own, weights), "weights", CONFIG_HINT, "weights.config_mismatch")
    model.load_weights(weights)
    for part in model.head.modules():
        if isinstance(part, Classifier):
            part.initialize(Original())
    return tuple(_messages(new, source, bool(resampled)))


class AdaptedModel(NamedTuple):
    """An adapted model, and messages about what was changed."""

    loaded: LoadedModel
    messages: tuple[str, ...]


def adapt(
    source: LoadedModel,
    *,
    image_size: SizeLike | None = None,
    channels: int | None = None,
    patch: SizeLike | None = None,
    layers: Sequence[int] = (),
    classes: Sequence[str] = (),
) -> AdaptedModel:
    """A model for other images, or with some of its layers: `adapt(loaded, image_size=384, layers=(0, 2, 4))`.

    The head is kept; with class names, a new one starts at zero. Another patch size keeps the image size, so that the
    number of patches changes.
    """
    given = {"image_size": image_size, "channels": channels, "stem.patch": patch}
    settings = {name: value for name, value in given.items() if value is not None}
    bundle, messages = source.bundle, list[str]()
    old, weights = bundle.model, dict(source.model.state_dict())
    if layers:
        if not isinstance(old, Vit):
            message = "a ResNet has no layers to choose from"
            raise ConfigError(message, code="config.unsupported", where="layers", hint="omit them")
        weights = select_layers(weights, old, layers)
        messages.append(f"layers {', '.join(map(str, layers))} of {old.depth} kept")
        old = old.model_copy(update={"depth": len(layers)})
    if patch is not None and not patches_can_be_resized(old):
        message = "only patches of pixels without a norm before the patch embedding can be resized"
        raise ConfigError(message, code="config.unsupported", where="patch", hint="omit it")
    new = override(old, settings)
    model = new.build_empty()
    weights = _adapt_tensors(weights, old, new)
    resampled = _resample_positions(model, weights, old)
    model.load_weights(weights | resampled)
    # DINOv2 is used with smaller images than its positions were trained for: that size stays.
    image = new.image_size if new.image_size != old.image_size else bundle.preprocessing.image_size
    new.layout(image)  # raises ConfigError for a size that the new patches do not divide
    preprocessing = adapt_preprocessing(bundle.preprocessing, image, new.channels)
    model.activation = bundle.activation
    loaded = LoadedModel(model.eval(), bundle.model_copy(update={"model": new, "preprocessing": preprocessing}))
    messages += _image_messages(old, new, bool(resampled))
    if classes:
        loaded = _with_classes(loaded, tuple(classes))
        messages += _head_messages(old.head, loaded.bundle.model.head)
    return AdaptedModel(loaded, tuple(messages))


def adapt_preprocessing(preprocessing: Preprocessing, image: Size, channels: int) -> Preprocessing:
    """The preprocessing for another image size and number of channels; several means are averaged where needed."""
    normalize, decoding = preprocessing.normalize, preprocessing.decoding.model_copy(update={"channels": channels})
    if len(normalize.mean) not in {1, channels}:
        mean, std = sum(normalize.mean) / len(normalize.mean), sum(normalize.std) / len(normalize.std)
        normalize = Normalize(mean=(mean,), std=(std,))
    return preprocessing.model_copy(update={"image_size": image, "normalize": normalize, "decoding": decoding})


def _with_classes(source: LoadedModel, classes: tuple[str, ...]) -> LoadedModel:
    """The model with a new head, of zeros, for other classes."""
    model = override(source.bundle.model, ["head=linear", f"head.num_classes={len(classes)}", "head.temperature=1"])
    fresh = model.build()
    load_pretrained(fresh, source)
    head = {"model": model, "classes": classes, "task": "classify", "activation": "softmax"}
    return LoadedModel(fresh.eval(), source.bundle.model_copy(update=head))


def config_differences(old: Vit | Resnet, new: Vit | Resnet, fresh: tuple[str, ...]) -> list[str]:
    """The fields that differ between two models and must not."""
    before, after = _leaves(old.model_dump(mode="json")), _leaves(new.model_dump(mode="json"))
    free = tuple(f"{name}." for name in FREE_FIELDS) + fresh
    fewer = ("depth",) if before.get("depth", 0) > after.get("depth", 0) else ()
    names = [name for name in before | after if not f"{name}.".startswith(free) and name not in fewer]
    differing = [name for name in names if before.get(name) != after.get(name)]
    kinds = tuple(name.removesuffix("kind") for name in differing if name.endswith(".kind"))  # whose fields are others
    return [
        f"{name} is {after.get(name, 'absent')}, and {before.get(name, 'absent')} in the weights"
        for name in differing
        if name.endswith(".kind") or not name.startswith(kinds)
    ]


def config_changes(before: Vit | Resnet, after: Vit | Resnet, training: bool = False) -> list[str]:
    """The fields in which two models differ: those that affect the outputs, or those of training alone."""
    old, new = _leaves(before.model_dump(mode="json")), _leaves(after.model_dump(mode="json"))
    return [
        f"{name} {old.get(name, 'absent')} became {new.get(name, 'absent')}"
        for name in old | new
        if old.get(name) != new.get(name) and name not in UNIMPORTANT and name.endswith(TRAINING_FIELDS) == training
    ]


def _adapt_tensors(weights: dict[str, Tensor], old: Vit | Resnet, new: Vit | Resnet) -> dict[str, Tensor]:
    """The weights for fewer layers, another number of channels and another patch size."""
    if isinstance(old, Vit) and isinstance(new, Vit) and new.depth < old.depth:
        weights = select_layers(weights, old, range(new.depth))
    if new.channels != old.channels:
        weights = weights | adapt_channels(weights, old, new.channels)
    if resized := _resized_patch(old, new):
        name, (before, after) = "stem.project.weight", resized
        weights = weights | {name: kernel_to_linear(resize_patches(linear_to_kernel(weights[name], before), after))}
    return weights


def _resized_patch(old: Vit | Resnet, new: Vit | Resnet) -> tuple[Size, Size] | None:
    """The patch sizes of two models, if they differ."""
    if isinstance(old, Resnet) or isinstance(new, Resnet):
        return None
    if not isinstance(old.stem, Patches) or not isinstance(new.stem, Patches) or old.stem.patch == new.stem.patch:
        return None
    return old.stem.patch, new.stem.patch


def _leaves(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested data by dotted name: `mixer.heads`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= _leaves(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def _resample_positions(model: Model, weights: Mapping[str, Tensor], old: Vit | Resnet) -> dict[str, Tensor]:
    """The weights that depend on the grid, resampled; none where the grid is the same or no weight depends on it."""
    grid = old.layout(old.image_size).grid
    if model.config.layout(model.config.image_size).grid == grid:
        return {}
    found: dict[str, Tensor] = {}
    for home, part in model.named_modules(remove_duplicate=False):
        if isinstance(part, GridDependent):
            mine = {name: weights[f"{home}.{name}"] for name in part.state_dict()}
            resampled = part.resample_weights(mine, grid).items()
            found |= {f"{home}.{name}": tensor for name, tensor in resampled if tensor is not mine[name]}
    return found


def _messages(new: Vit | Resnet, source: LoadedModel, resampled: bool) -> Iterator[str]:
    old, masked = source.bundle.model, source.bundle.task == "masked_patches"
    if head := ", ".join(_head_messages(NoHead() if masked else old.head, new.head)):
        yield head
    if masked and isinstance(new, Vit) and isinstance(new.pool, AttentionPool):
        yield "the pool, which masked patches do not train, is newly initialized"
    if isinstance(old, Vit) and isinstance(new, Vit) and new.depth < old.depth:
        yield f"the first {new.depth} of {old.depth} layers kept"
    yield from _image_messages(old, new, resampled)


def _image_messages(old: Vit | Resnet, new: Vit | Resnet, resampled: bool) -> Iterator[str]:
    if new.channels != old.channels:
        how = "summed" if new.channels == 1 else f"repeated and scaled by {old.channels / new.channels:.3g}"
        yield f"the stem's weights for {old.channels} channels {how} for {new.channels}"
    if resized := _resized_patch(old, new):
        yield f"patches of {resized[0]} resized to {resized[1]} by the pseudo-inverse"
    if resampled:
        before, after = old.layout(old.image_size).grid, new.layout(new.image_size).grid
        yield f"positions resampled from {before} to {after}"
        yield from stretch_message(before, after)


def _head_messages(old: HeadConfig, new: HeadConfig) -> Iterator[str]:
    if not isinstance(old, NoHead):
        yield f"head of {old.num_classes} classes dropped"
    if not isinstance(new, NoHead):
        head = f"head of {new.num_classes} classes" if isinstance(old, NoHead) else f"one of {new.num_classes}"
        yield f"a new {head} starts at zero"
        if new.bias:
            yield f"its bias at {new.bias:g}"
