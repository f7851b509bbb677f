"""Low-rank adapters (arXiv 2106.09685): a frozen weight W becomes W + s B A, of which A and B learn.

M outputs, D inputs, r rank, s scale.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from vitral.models.attention import QkvProjection, SelfAttention
from vitral.models.mlp import FeedForward, GatedFeedForward

LoraTarget = Literal["qkv", "project", "mlp"]
PARAMETRIZED = ".parametrizations.weight."  # in state-dict names of torch


def add_low_rank(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> Tensor:
    """W + s B A, of weight W (M, D), B (M, r) and A (r, D)."""
    return weight + scale * (up @ down)


class LoraAdapter(nn.Module):
    """The parametrization of a weight. B starts at zero, so the model starts unchanged, to the bit.

    A and B have the weight decay and the layer's learning rate of any linear layer.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = scale
        self.down = nn.Linear(inputs, rank, bias=False, device=weight.device)  # A
        self.up = nn.Linear(rank, outputs, bias=False, device=weight.device)  # B
        nn.init.zeros_(self.up.weight)

    def forward(self, weight: Tensor) -> Tensor:
        return add_low_rank(weight, self.up.weight, self.down.weight, self.scale)  # (M, D)


def add_adapters(blocks: nn.Module, parts: Collection[LoraTarget], rank: int, scale: float) -> None:
    """Add an adapter to each of these linear layers.

    As a parametrization, it applies wherever `weight` is read, whole or in slices. A step takes as long as one that
    trains W. Computing x Aᵀ Bᵀ beside x Wᵀ would take 0.77 (B/16, 4 images) to 1.0 (S/16, 16 images) of that on a core
    of an AMD EPYC, but all code that reads a weight would have to know of the adapter.
    """
    for linear in list(target_layers(blocks, parts)):  # a list: adapters are modules of the blocks, too
        register_parametrization(linear, "weight", LoraAdapter(linear.weight, rank, scale))


def target_layers(blocks: nn.Module, parts: Collection[LoraTarget]) -> Iterator[nn.Linear]:
    """The linear layers of these kinds, in the order of the blocks."""
    for module in blocks.modules():
        if isinstance(module, QkvProjection) and "qkv" in parts:
            yield module.qkv
        elif isinstance(module, SelfAttention) and isinstance(module.project, nn.Linear) and "project" in parts:
            yield module.project
        elif isinstance(module, FeedForward | GatedFeedForward) and "mlp" in parts:
            yield from (module.expand, module.contract)


@torch.no_grad()
def merge_adapters(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The state dict of the same model without adapters: each is merged into its weight."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        home, adapted, message = name.partition(PARAMETRIZED)
        if not adapted:
            found[name] = tensor
        elif message == "original":
            up, down = (
                tensors[f"{home}{PARAMETRIZED}0.{kernel}.weight"] for kernel in ("up", "down")
            )  # (M, r), (r, D)
            found[f"{home}.weight"] = add_low_rank(tensor, up, down, scale)
    return found
