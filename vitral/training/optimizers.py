"""What turns gradients into steps, and which weights decay, and how fast each layer learns."""

from collections import defaultdict
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.resnet import StdConv2d
from vitral.models.vit import VisionTransformer

FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}  # devices on which torch takes a whole step in one kernel
Fraction = Annotated[float, Field(ge=0, lt=1)]


class OptimizerKind(Config):
    """What every kind has. The weights to learn are those of the task, its model and whatever it adds."""

    layer_decay: float = Field(default=1.0, gt=0, le=1)  # how much slower a layer learns than the one above it


class AdamW(OptimizerKind):
    """Adam with decoupled weight decay: the paper's for pre-training (arXiv 1711.05101).

    A weight loses rate x decay of itself at each step, as in torch. big_vision's decay leaves out the peak rate, so its
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


class Sgd(OptimizerKind):
    """Stochastic gradient descent with momentum: the paper's for fine-tuning. Decay is added to the gradient.

    Its step is not fused: torch has no fused one for a model that is divided among processes.
    """

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.01, gt=0)  # at its peak
    momentum: Fraction = 0.9
    weight_decay: float = Field(default=0.0, ge=0)
    nesterov: bool = False

    @model_validator(mode="after")
    def nesterov_has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            hint = "set momentum=0.9, or nesterov=false"
            message = "looks ahead along the momentum, which is 0"
            raise ConfigError(message, code="config.conflict", where="nesterov", hint=hint)
        return self

    def build(self, task: nn.Module) -> Optimizer:
        groups = param_groups(task, self.weight_decay, self.layer_decay)
        optimizer = torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)
        set_lr(optimizer, self.lr)
        return optimizer


OptimizerConfig = Annotated[AdamW | Sgd, Field(discriminator="kind")]


def set_lr(optimizer: Optimizer, rate: float) -> None:
    """Give every group this rate times its own multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["multiplier"]


class GroupKey(NamedTuple):
    """What the parameters of one group have in common."""

    decay: float
    multiplier: float


def param_groups(task: nn.Module, decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """The trainable parameters with their names, as torch's groups: one for each decay and multiplier of the rate."""
    multipliers = layer_lr_scales(task, layer_decay)
    kernels = decayed_weights(task)
    lots: dict[GroupKey, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, weight in task.named_parameters():
        if weight.requires_grad:
            lot = GroupKey(decay if weight in kernels else 0.0, multipliers.get(weight, 1.0))
            lots[lot].append((name, weight))
    if not lots:
        hint = "leave at least the head free to learn"
        raise ConfigError("every weight is frozen", code="config.nothing_to_train", where="task", hint=hint)
    return [
        {"params": weights, "weight_decay": lot.decay, "multiplier": lot.multiplier} for lot, weights in lots.items()
    ]


def decayed_weights(task: nn.Module) -> set[Tensor]:
    """The kernels of linear maps and convolutions: biases, norms, scales, positions and tokens never decay."""
    return {part.weight for part in task.modules() if isinstance(part, nn.Linear | nn.Conv2d | StdConv2d)}


def layer_lr_scales(task: nn.Module, layer_decay: float) -> dict[Tensor, float]:
    """What the rate of each parameter below the final norm is multiplied by (BEiT, arXiv 2106.08254; MAE, 2111.06377).

    The stem, the tokens before the patches, the positions and the norm after them are layer 0, the first block is layer
    1. All that follows the blocks, and all that the task adds, learns at the full rate.
    """
    if layer_decay == 1:
        return {}
    encoder = next((part for part in task.modules() if isinstance(part, VisionTransformer)), None)
    if encoder is None:
        raise ConfigError(
            "counts the layers of a Vision Transformer, and this model is none",
            code="config.unsupported",
            where="layer_decay",
            hint="set layer_decay=1",
        )
    first = nn.ModuleList([encoder.stem, encoder.prefix, encoder.position, encoder.first_norm])
    layers = [first, *encoder.blocks]
    return {
        weight: layer_decay ** (len(layers) - layer)
        for layer, part in enumerate(layers)
        for weight in part.parameters()
    }


def supports_fused(task: nn.Module) -> bool:
    return {weight.device.type for weight in task.parameters()} <= FUSED_DEVICES
