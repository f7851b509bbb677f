"""Optimizers, and the list of kinds that ship."""

from typing import Annotated

from vitral.core.config import OpenUnion
from vitral.training.optimizers.adamw import AdamW
from vitral.training.optimizers.base import (
    BaseOptimizer,
    ConstantDecay,
    CosineDecay,
    layer_lr_scales,
    param_groups,
    set_lr,
    set_weight_decay,
    supports_fused,
)
from vitral.training.optimizers.muon import Muon
from vitral.training.optimizers.schedule_free import ScheduleFreeAdamW, build_average
from vitral.training.optimizers.sgd import Sgd

OptimizerConfig = Annotated[AdamW | Sgd | Muon | ScheduleFreeAdamW, OpenUnion()]

__all__ = [
    "AdamW",
    "BaseOptimizer",
    "ConstantDecay",
    "CosineDecay",
    "Muon",
    "OptimizerConfig",
    "ScheduleFreeAdamW",
    "Sgd",
    "build_average",
    "layer_lr_scales",
    "param_groups",
    "set_lr",
    "set_weight_decay",
    "supports_fused",
]
