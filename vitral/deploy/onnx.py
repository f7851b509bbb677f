"""Graphs as ONNX models.  B images, H x W pixels, C channels, K numbers."""

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from vitral import __version__
from vitral.deploy.choosing import CHOOSING
from vitral.deploy.engine import INPUT
from vitral.deploy.graph import Graph
from vitral.deploy.operators import OPERATORS
from vitral.deploy.tracing import Notes, Trace, parts_told
from vitral.errors import ConfigError

OPSET = 20  # the first that has Gelu; 2023
FORMAT = 9  # of the file, the first that goes with it
SAMPLE = 2  # images: enough to tell what is repeated for a batch from what is there once


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The graph as an ONNX model: `pixels` uint8 (B, H, W, C) to `logits` or `features` float32 (B, K), for any B."""
    notes = traced(graph)
    nodes = helper.make_graph(
        notes.nodes,
        "vitral",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", *graph.image, graph.channels])],
        [helper.make_tensor_value_info(graph.answer, TensorProto.FLOAT, ["batch", graph.outputs])],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        nodes, opset_imports=[opset], ir_version=FORMAT, producer_name="vitral", producer_version=__version__
    )
    for name, value in notes.constants.items():  # into the model itself: whatever it is made of is copied
        model.graph.initializer.add().CopyFrom(numpy_helper.from_array(value.contiguous().numpy(), name))
    return model


def serialised(model: onnx.ModelProto, where: str, remedy: str) -> bytes:
    """The model as the bytes of a file, of which protobuf makes 2 GB at most."""
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf has several for this
        raise ConfigError(
            f"a model of ONNX has 2 GB at most: {error}", code="config.model_too_large", where=where, remedy=remedy
        ) from None


def traced(graph: Graph) -> Notes:
    """All that the graph does, in nodes; ConfigError names the part that cannot be written so."""
    own = graph.again()  # to hang hooks on
    pixels = torch.zeros(SAMPLE, *graph.image, graph.channels, dtype=torch.uint8)
    with parts_told(own) as part, torch.no_grad():
        notes = Notes(part)
        notes.name(pixels, INPUT)
        with Trace(notes, OPERATORS | CHOOSING):
            answer = own(pixels)
    notes.finish(answer, graph.answer)
    return notes
