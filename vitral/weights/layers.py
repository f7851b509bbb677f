"""Weights for a stem of other channels, or for some of the layers.  D width, C channels."""

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from vitral.errors import ConfigError
from vitral.model.attention import AttentionKind
from vitral.model.bit import Resnet
from vitral.model.patches import Patches
from vitral.model.vit import Vit

BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
TABLES = ("position.table", "position.x", "position.y")  # where positions are added in every layer, one for each


def some_layers(weights: Mapping[str, Tensor], model: Vit, layers: Sequence[int]) -> dict[str, Tensor]:
    """The weights of a model that has these layers of the old one, counted from 0, in this order."""
    check_layers(layers, model.depth)
    check_windows(layers, model)
    places = {old: new for new, old in enumerate(layers)}
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        match = BLOCK.fullmatch(name)
        if name in TABLES and len(tensor) == model.depth > 1:
            found[name] = tensor[list(layers)]
        elif match is None:
            found[name] = tensor
        elif int(match[1]) in places:
            found[f"blocks.{places[int(match[1])]}.{match[2]}"] = tensor
    return found


def check_layers(layers: Sequence[int], depth: int) -> None:
    """Refuse layers that are not there, or that are named twice."""
    if not layers or len(set(layers)) != len(layers) or not all(0 <= layer < depth for layer in layers):
        what = f"expected some of the layers 0 to {depth - 1}, each once, got {', '.join(map(str, layers)) or 'none'}"
        raise ConfigError(what, code="config.out_of_range", where="layers", remedy="give for example 0,2,4")


def check_windows(layers: Sequence[int], model: Vit) -> None:
    """Refuse to put a layer where patches see others than those that it learnt to look at."""
    if not isinstance(model.mixer, AttentionKind):
        return
    grid = model.layout(model.image).grid
    for new, old in enumerate(layers):
        if model.mixer.window(grid, new) != model.mixer.window(grid, old):
            what = f"layer {old} would become layer {new}, in which {model.mixer.kind} attention sees other patches"
            raise ConfigError(
                what, code="config.conflict", where="layers", remedy="take rows and columns in turn: 0,1,4,5"
            )


def other_channels(weights: Mapping[str, Tensor], old: Vit | Resnet, channels: int) -> dict[str, Tensor]:
    """The weights of the first map for images of so many channels; all else is the caller's.

    One channel gets the sum of the old ones, which answers to a grey image as the old did to three equal channels.
    Several repeat the old ones in turn, scaled so that as much comes through.
    """
    if isinstance(old, Vit) and isinstance(old.stem, Patches):
        if old.stem.norm == "both":
            what = "the norm before the patches' map is over all channels together"
            raise ConfigError(what, code="config.unsupported", where="channels", remedy=f"leave them at {old.channels}")
        name, kernel = "stem.project.weight", weights["stem.project.weight"].unflatten(1, (old.channels, -1))
        return {name: spread(kernel, channels).flatten(1)}  # (D, C P Q)
    name = "stem.body.root.0.weight" if isinstance(old, Vit) else "body.root.0.weight"
    return {name: spread(weights[name], channels)}


def spread(kernel: Tensor, channels: int) -> Tensor:
    """A kernel (D, C, ...) for another number of channels."""
    before = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    turns = [channel % before for channel in range(channels)]
    return kernel[:, turns] * (before / channels)
