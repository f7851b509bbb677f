"""Parameter groups: weight decay, and layer-wise learning rate decay."""

from collections import defaultdict
from collections.abc import Callable
from inspect import unwrap
from math import cos, pi
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.resnet import StdConv2d
from vitral.models.vit import VisionTransformer

FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}  # devices for which torch has fused steps
Fraction = Annotated[float, Field(ge=0, lt=1)]


Decayed = Literal["kernels", "matrices", "all"]


class ConstantDecay(Config):
    """The weight decay stays as it is."""

    kind: Literal["constant"] = "constant"

    def value(self, start: float, done: float) -> float:
        """The weight decay after a fraction of the run."""
        return start


class CosineDecay(Config):
    """The weight decay goes from its value to `end` along half a cosine, as in DINO (arXiv 2104.14294)."""

    kind: Literal["cosine"] = "cosine"
    end: float = Field(default=0.4, ge=0)

    def value(self, start: float, done: float) -> float:
        """The weight decay after a fraction of the run."""
        return self.end + (start - self.end) * (1 + cos(pi * done)) / 2


DecayScheduleConfig = Annotated[ConstantDecay | CosineDecay, OpenUnion()]


class BaseOptimizer(Config):
    """Options of every optimizer. It trains the parameters of the task: its model and what the task adds."""

    layer_decay: float = Field(default=1.0, gt=0, le=1)  # factor of the learning rate from a layer to the one below it
    # What decays: kernels of linear layers and convolutions, all parameters of more than one dimension, or all.
    decayed: Decayed = "kernels"
    decay_schedule: DecayScheduleConfig = ConstantDecay()  # of the weight decay over the run


class EagerOptimizer(Optimizer):
    """Torch's optimizer without the import of its compiler, which takes a second.

    Torch wraps these methods so that `torch.compile` leaves them alone. We compile the task, not the optimizer.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class GroupOptimizer(EagerOptimizer):
    """An optimizer that takes a step for one parameter group after the other."""

    def __init__(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> None:
        super().__init__(groups, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.step_group(group)
        return loss

    def step_group(self, group: dict[str, Any]) -> None:
        """Take a step for the weights of a group that have a gradient."""
        raise NotImplementedError


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group: `lr` times the scale of the group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def set_weight_decay(optimizer: Optimizer, weight_decay: float) -> None:
    """Set the weight decay of every group that decays."""
    for group in optimizer.param_groups:
        if group["decays"]:
            group["weight_decay"] = weight_decay


def decayed_parameters(task: nn.Module, decayed: Decayed) -> set[Tensor]:
    """The parameters that decay: by default not biases, norms, scales, positions and tokens."""
    if decayed == "kernels":
        return {part.weight for part in task.modules() if isinstance(part, nn.Linear | nn.Conv2d | StdConv2d)}
    return {weight for weight in task.parameters() if decayed == "all" or weight.ndim > 1}


def param_groups(
    task: nn.Module, weight_decay: float, layer_decay: float, decayed: Decayed = "kernels"
) -> list[dict[str, Any]]:
    """The parameter groups of the trainable parameters: one for each weight decay and learning rate scale."""
    scales = layer_lr_scales(task, layer_decay)
    chosen = decayed_parameters(task, decayed)
    groups: dict[tuple[float, float], list[tuple[str, Tensor]]] = defaultdict(list)
    for name, weight in task.named_parameters():
        if weight.requires_grad:
            groups[weight_decay if weight in chosen else 0.0, scales.get(weight, 1.0)].append((name, weight))
    if not groups:
        hint = "leave at least the head trainable"
        raise ConfigError("all parameters are frozen", code="config.nothing_to_train", where="task", hint=hint)
    return [
        {"params": weights, "weight_decay": decay, "lr_scale": scale, "decays": decay > 0}
        for (decay, scale), weights in groups.items()
    ]


def layer_lr_scales(task: nn.Module, layer_decay: float) -> dict[Tensor, float]:
    """The learning rate scale of each parameter below the final norm (BEiT, arXiv 2106.08254; MAE, 2111.06377).

    The stem, the prefix tokens, the positions and the norm after them are layer 0, the first block is layer 1. What
    follows the blocks, and what the task adds, has the full learning rate.
    """
    if layer_decay == 1:
        return {}
    encoder = next((part for part in task.modules() if isinstance(part, VisionTransformer)), None)
    if encoder is None:
        message = "layer_decay needs a Vision Transformer, but this model is not one"
        raise ConfigError(message, code="config.unsupported", where="layer_decay", hint="set layer_decay=1")
    first = nn.ModuleList([encoder.stem, encoder.prefix, encoder.position, encoder.first_norm])
    layers = [first, *encoder.blocks]
    return {
        weight: layer_decay ** (len(layers) - layer)
        for layer, part in reversed(list(enumerate(layers)))  # a weight that layers share belongs to the first
        for weight in part.parameters()
    }


def supports_fused(task: nn.Module) -> bool:
    return {weight.device.type for weight in task.parameters()} <= FUSED_DEVICES
