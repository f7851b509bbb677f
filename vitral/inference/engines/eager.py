"""Torch as it is, with the weights packed for the processor where that pays.  B images, H x W pixels, K numbers."""

from typing import Literal

import torch
from torch import Tensor, nn

from vitral.inference.engines.engine import Engine, EngineKind, FloatArray, PixelBatch, Threads
from vitral.inference.graph.graph import Graph
from vitral.models.mlp import FeedForward

CHUNK = 16  # images at a time: a larger batch is no quicker, and its numbers leave the caches


class Eager(EngineKind):
    """Torch as it is: runs every model, and is ready at once. It has as many threads as torch has."""

    kind: Literal["eager"] = "eager"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return EagerEngine(pack_graph(graph))


class EagerEngine:
    """A module that answers bytes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @torch.inference_mode()
    def run(self, pixels: PixelBatch) -> FloatArray:
        found = torch.empty(len(pixels), self._graph.outputs)  # (B, K)
        for start in range(0, len(pixels), CHUNK):
            portion = torch.from_numpy(pixels[start : start + CHUNK])  # (portion, H, W, C)
            found[start : start + CHUNK] = self._graph(portion)
        return found.numpy()


class PackedLinear(nn.Module):
    """A linear layer whose weights lie as oneDNN reads them: a seventh quicker where processors have AVX-512."""

    def __init__(self, linear: nn.Linear, then: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        # The tanh form of GELU is slow by itself; the erf form is as quick after the product as in it.
        self.then = ("none", "") if then == "none" else ("gelu", then)

    def forward(self, x: Tensor) -> Tensor:
        kind, form = self.then
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, kind, [], form)


class PackedMlp(nn.Module):
    """Two packed layers with the tanh form of GELU in the first."""

    def __init__(self, mlp: FeedForward) -> None:
        super().__init__()
        self.expand, self.contract = PackedLinear(mlp.expand, "tanh"), PackedLinear(mlp.contract)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.expand(x))


def pack_graph(graph: Graph) -> Graph:
    """The graph with packed layers in the place of its linear ones, where torch can; the rest is shared."""
    if not torch.backends.mkldnn.is_available():
        return graph
    own = graph.copy_sharing_weights()
    pack_layers(own)
    return own


def pack_layers(part: nn.Module) -> None:
    for name, child in part.named_children():
        if isinstance(child, FeedForward) and child.gelu == "tanh":
            setattr(part, name, PackedMlp(child))
        elif isinstance(child, nn.Linear):
            setattr(part, name, PackedLinear(child))
        else:
            pack_layers(child)
