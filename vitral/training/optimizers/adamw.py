"""AdamW."""

from inspect import unwrap
from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from vitral.training.optimizers.base import (
    BaseOptimizer,
    EagerOptimizer,
    Fraction,
    param_groups,
    set_lr,
    supports_fused,
)


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """Torch's AdamW; see `EagerOptimizer`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


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
        groups = param_groups(task, self.weight_decay, self.layer_decay, self.decayed)
        optimizer = EagerAdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=supports_fused(task))
        set_lr(optimizer, self.lr)
        return optimizer
