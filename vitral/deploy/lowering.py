"""A graph in the steps that engines of ONNX take quickest: the same answers by other products.

Torch is quickest with norms that have weights and with one product for queries, keys and values. In these engines the
weights of a norm are a step of their own over all tokens, and to part what one product made copies all of it.
"""

from collections.abc import Sequence

from torch import nn

from vitral.deploy.blocks import Block
from vitral.deploy.engine import Precision
from vitral.deploy.folding import bare, behind
from vitral.deploy.graph import Graph
from vitral.deploy.layers import WholeAttention
from vitral.model.mlp import GatedLayers, TwoLayers


def lowered(graph: Graph, precision: Precision) -> Graph:
    """The graph as it is to be written for an engine of ONNX; weights that nothing is worked into are the same.

    What is to be quantised keeps the weights of its norms: in the layers after them they would widen the range of each
    row, and int8 would drift further (by a sixth on a DINOv2, and it would be no quicker).
    """
    own = graph.again()
    for block in [part for part in own.modules() if isinstance(part, Block)]:
        if isinstance(block.mixer, WholeAttention):
            block.mixer.qkv = block.mixer.qkv.apart()
        if block.first and precision == "float32":
            lower_norms(block)
    return own.requires_grad_(False)


def lower_norms(block: Block) -> None:
    """Work the weights of norms into the layers after them, where nothing but such layers reads a norm."""
    if isinstance(block.mixer, WholeAttention):
        put_behind(block.mixer_norm, block.mixer.qkv, ("q", "k", "v"))
        block.mixer_norm = bare(block.mixer_norm)
    if isinstance(block.mlp, TwoLayers | GatedLayers):
        put_behind(block.mlp_norm, block.mlp, ("expand",))
        block.mlp_norm = bare(block.mlp_norm)


def put_behind(norm: nn.LayerNorm, layers: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        setattr(layers, name, behind(norm, getattr(layers, name)).layer())
