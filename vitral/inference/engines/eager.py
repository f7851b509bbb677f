"""The eager engine: torch, with packed linear layers.  B images, H x W pixels, C channels, K outputs.

A packed layer has its weight in oneDNN's blocked layout and tanh GELU fused into it, by private operators of torch.
The public ways are slower: `F.linear`, which reorders the weight at every call (1.6 times the seconds of a Ti/16 at
batch 1, in one run on a busy 2-core machine), and `torch.utils.mkldnn`, which converts every input and fuses no GELU
(1.3 times). A torch without these operators runs the layers as they are.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from vitral.inference.engines.engine import BaseEngine, Engine, FloatArray, PixelBatch, Threads
from vitral.inference.graph.graph import Graph
from vitral.models.mlp import FeedForward

CHUNK = 16  # images at a time: with more the activations no longer fit the caches


class Eager(BaseEngine):
    """Torch: runs every model and is ready at once, with as many threads as torch has."""

    kind: Literal["eager"] = "eager"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return EagerEngine(pack_graph(graph))


class EagerEngine:
    """A graph that is run in chunks."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @torch.inference_mode()
    def run(self, pixels: PixelBatch) -> FloatArray:
        outputs = torch.empty(len(pixels), self._graph.outputs)  # (B, K)
        for start in range(0, len(pixels), CHUNK):
            chunk = torch.from_numpy(pixels[start : start + CHUNK])  # (chunk, H, W, C)
            outputs[start : start + CHUNK] = self._graph(chunk)
        return outputs.numpy()


class PackedLinear(nn.Module):
    """A linear layer with a packed weight, followed by the tanh form of GELU or by nothing."""

    def __init__(self, linear: nn.Linear, gelu: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.fused = ("none", "") if gelu == "none" else ("gelu", gelu)  # the function, and its form

    def forward(self, x: Tensor) -> Tensor:
        kind, form = self.fused
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, kind, [], form)


class PackedMlp(nn.Module):
    """Two packed layers, the first with tanh GELU fused into it. Erf GELU is as fast unfused."""

    def __init__(self, mlp: FeedForward) -> None:
        super().__init__()
        self.expand, self.contract = PackedLinear(mlp.expand, "tanh"), PackedLinear(mlp.contract)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.expand(x))


def can_pack() -> bool:
    """Whether this torch has packed linear layers."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def pack_graph(graph: Graph) -> Graph:
    """A copy of the graph with packed linear layers; the graph itself where torch cannot pack."""
    if not can_pack():
        return graph
    own = graph.copy_sharing_weights()
    pack_layers(own)
    return own


def pack_layers(part: nn.Module) -> None:
    """Replace the linear layers below a module by packed ones."""
    for name, child in part.named_children():
        if isinstance(child, FeedForward) and child.activation == "gelu_tanh" and isinstance(child.norm, nn.Identity):
            setattr(part, name, PackedMlp(child))
        elif isinstance(child, nn.Linear):
            setattr(part, name, PackedLinear(child))
        else:
            pack_layers(child)
