"""Activation functions by name, as the configs of checkpoints name them."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

ActivationName = Literal[
    "gelu_tanh", "gelu", "quick_gelu", "relu", "silu", "relu6", "leaky_relu", "elu", "selu", "mish", "hardswish",
    "tanh", "sigmoid", "identity",
]  # fmt: skip


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU (arXiv 1606.08415) approximated by tanh, as in the original code."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """GELU approximated by a sigmoid, as in CLIP."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": gelu_tanh,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "silu": F.silu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def activate(x: Tensor, name: ActivationName) -> Tensor:
    """Apply an activation function."""
    return ACTIVATIONS[name](x)
