"""Graphs as ONNX models.  B images, H x W pixels, C channels, K numbers.

A graph in the steps that engines of ONNX take quickest: the same answers by other products.
"""

from collections.abc import Sequence

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from vitral import __version__
from vitral.core.errors import ConfigError
from vitral.inference.engines.engine import INPUT_NAME, Precision
from vitral.inference.graph.folding import bare, behind
from vitral.inference.graph.graph import Graph
from vitral.inference.graph.layers import Block, WholeAttention
from vitral.inference.graph.onnx_ops import CHOOSING, OPERATORS
from vitral.inference.graph.onnx_trace import Notes, Trace, parts_told
from vitral.models.mlp import FeedForward, GatedFeedForward


def lowered(graph: Graph, precision: Precision) -> Graph:
    """The graph as it is to be written for an engine of ONNX; weights that nothing is worked into are the same.

    What is to be quantized keeps the weights of its norms: in the layers after them they would widen the range of each
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
    if isinstance(block.mlp, FeedForward | GatedFeedForward):
        put_behind(block.mlp_norm, block.mlp, ("expand",))
        block.mlp_norm = bare(block.mlp_norm)


def put_behind(norm: nn.LayerNorm, layers: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        setattr(layers, name, behind(norm, getattr(layers, name)).layer())


OPSET = 20  # the first that has Gelu; 2023
FORMAT = 9  # of the file, the first that goes with it
SAMPLE = 2  # images: enough to tell what is repeated for a batch from what is there once


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The graph as an ONNX model: `pixels` uint8 (B, H, W, C) to `logits` or `features` float32 (B, K), for any B."""
    notes = traced(graph)
    nodes = helper.make_graph(
        notes.nodes,
        "vitral",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["batch", *graph.image, graph.channels])],
        [helper.make_tensor_value_info(graph.answer, TensorProto.FLOAT, ["batch", graph.outputs])],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        nodes, opset_imports=[opset], ir_version=FORMAT, producer_name="vitral", producer_version=__version__
    )
    for name, value in notes.constants.items():  # into the model itself: whatever it is made of is copied
        model.graph.initializer.add().CopyFrom(numpy_helper.from_array(value.contiguous().numpy(), name))
    return model


def serialized(model: onnx.ModelProto, where: str, hint: str) -> bytes:
    """The model as the bytes of a file, of which protobuf makes 2 GB at most."""
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf has several for this
        raise ConfigError(
            f"a model of ONNX has 2 GB at most: {error}", code="config.model_too_large", where=where, hint=hint
        ) from None


def traced(graph: Graph) -> Notes:
    """All that the graph does, in nodes; ConfigError names the part that cannot be written so."""
    own = graph.again()  # to hang hooks on
    pixels = torch.zeros(SAMPLE, *graph.image, graph.channels, dtype=torch.uint8)
    with parts_told(own) as part, torch.no_grad():
        notes = Notes(part)
        notes.name(pixels, INPUT_NAME)
        with Trace(notes, OPERATORS | CHOOSING):
            answer = own(pixels)
    notes.finish(answer, graph.answer)
    return notes
