"""Stochastic gradient descent."""

from inspect import unwrap
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.optim import Optimizer

from vitral.core.errors import ConfigError
from vitral.training.optimizers.base import BaseOptimizer, EagerOptimizer, Fraction, param_groups, set_lr


class EagerSgd(EagerOptimizer, torch.optim.SGD):
    """Torch's SGD; see `EagerOptimizer`."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


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
        groups = param_groups(task, self.weight_decay, self.layer_decay, self.decayed)
        optimizer = EagerSgd(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)
        set_lr(optimizer, self.lr)
        return optimizer
