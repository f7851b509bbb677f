"""Parameter groups: weight decay, and layer-wise learning rate decay."""

from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.resnet import StdConv2d
from vitral.models.vit import VisionTransformer

FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}  # devices for which torch has fused steps
Fraction = Annotated[float, Field(ge=0, lt=1)]


class BaseOptimizer(Config):
    """Options of every optimizer. It trains the parameters of the task: its model and what the task adds."""

    layer_decay: float = Field(default=1.0, gt=0, le=1)  # factor of the learning rate from a layer to the one below it


class GroupOptimizer(Optimizer):
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


def param_groups(task: nn.Module, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """The parameter groups of the trainable parameters: one for each weight decay and learning rate scale."""
    scales = layer_lr_scales(task, layer_decay)
    # The kernels of linear layers and convolutions decay; biases, norms, scales, positions and tokens do not.
    kernels = {part.weight for part in task.modules() if isinstance(part, nn.Linear | nn.Conv2d | StdConv2d)}
    groups: dict[tuple[float, float], list[tuple[str, Tensor]]] = defaultdict(list)
    for name, weight in task.named_parameters():
        if weight.requires_grad:
            groups[weight_decay if weight in kernels else 0.0, scales.get(weight, 1.0)].append((name, weight))
    if not groups:
        hint = "leave at least the head trainable"
        raise ConfigError("all parameters are frozen", code="config.nothing_to_train", where="task", hint=hint)
    return [{"params": weights, "weight_decay": decay, "lr_scale": scale} for (decay, scale), weights in groups.items()]


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
