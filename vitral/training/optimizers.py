"""Optimizers, their parameter groups, weight decay and layer-wise learning rate decay."""

from collections import defaultdict
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.resnet import StdConv2d
from vitral.models.vit import VisionTransformer

FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}  # devices for which torch has fused steps
Fraction = Annotated[float, Field(ge=0, lt=1)]


class BaseOptimizer(Config):
    """Options of every optimizer. It trains the parameters of the task: its model and what the task adds."""

    layer_decay: float = Field(default=1.0, gt=0, le=1)  # factor of the learning rate from a layer to the one below it


class AdamW(BaseOptimizer):
    """Adam with decoupled weight decay: the paper's for pre-training (arXiv 1711.05101).

    As in torch, a weight decays by lr x weight_decay at each step. big_vision leaves out the peak learning rate, so its
    1e-4 at a peak of 1e-3 is 0.1 here.
    """

    kind: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)  # at its peak
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: float = Field(default=0.1, ge=0)
    eps: float = Field(default=1e-8, gt=0)

    def build(self, task: nn.Module) -> Optimizer:
        groups = param_groups(task, self.weight_decay, self.layer_decay)
        optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=supports_fused(task))
        set_lr(optimizer, self.lr)
        return optimizer


class Sgd(BaseOptimizer):
    """Stochastic gradient descent with momentum: the paper's for fine-tuning. Decay is added to the gradient.

    It is not fused: torch has no fused SGD step for a sharded model.
    """

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.01, gt=0)  # at its peak
    momentum: Fraction = 0.9
    weight_decay: float = Field(default=0.0, ge=0)
    nesterov: bool = False

    @model_validator(mode="after")
    def nesterov_has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            message, hint = "nesterov needs momentum, which is 0", "set momentum=0.9, or nesterov=false"
            raise ConfigError(message, code="config.conflict", where="nesterov", hint=hint)
        return self

    def build(self, task: nn.Module) -> Optimizer:
        groups = param_groups(task, self.weight_decay, self.layer_decay)
        optimizer = torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)
        set_lr(optimizer, self.lr)
        return optimizer


OptimizerConfig = Annotated[AdamW | Sgd, OpenUnion()]


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
