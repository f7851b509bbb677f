"""Quantisation: layers of an ONNX model that multiply bytes instead of floats.

Weights have a scale for each output, and 7 of 8 bits: where a processor adds products of bytes in 16 bits (AVX2), 8
would overflow, and the same file would answer otherwise there. B images, I inputs of a layer, O outputs.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from vitral.deploy.engine import Bytes, Engine

LEVELS = 63  # of a weight, to either side
BYTES = 255  # levels of an input
SENSITIVE = ("body.stem.", "head.")  # always in float: to quantise the patches multiplies the drift
PORTION = 8  # images at a time, while ranges are measured
LEAST = 1e-12  # a scale, lest a layer of zeros divide by zero


class Range(NamedTuple):
    """Between which numbers the inputs of a layer were found."""

    low: float
    high: float


def layers_of(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the layers that can be quantised: products of what comes in and a matrix of weights (I, O)."""
    matrices = {weight.name for weight in model.graph.initializer if len(weight.dims) == 2}
    return tuple(
        node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and not node.name.startswith(SENSITIVE)
    )


def part_of(layer: str) -> str:
    """The part of the model that a layer is, as people know it: `blocks.0.mixer.project`."""
    return layer.removeprefix("body.").rpartition(".")[0]


def dynamic(model: onnx.ModelProto, layers: Collection[str]) -> onnx.ModelProto:
    """The model with these layers quantised, the range of inputs measured in each batch anew."""

    def write(node: NodeProto, weights: "Weights", seen: bool) -> list[NodeProto]:
        x, (out,) = node.input[0], node.output
        numbers = [f"{x}.bytes", f"{x}.scale", f"{x}.zero"]
        first = [] if seen else [helper.make_node("DynamicQuantizeLinear", [x], numbers, name=f"{x}.quantise")]
        return [
            *first,
            helper.make_node(
                "MatMulInteger",
                [numbers[0], weights.bytes, numbers[2], weights.zero],
                [f"{out}.sums"],
                name=f"{node.name}.sums",
            ),
            helper.make_node(
                "Cast", [f"{out}.sums"], [f"{out}.whole"], name=f"{node.name}.whole", to=TensorProto.FLOAT
            ),
            helper.make_node("Mul", [numbers[1], weights.scale], [f"{out}.scale"], name=f"{node.name}.scale"),
            helper.make_node("Mul", [f"{out}.whole", f"{out}.scale"], [out], name=node.name),
        ]

    return _rewritten(model, layers, write, {})


def static(model: onnx.ModelProto, layers: Collection[str], ranges: Mapping[str, Range]) -> onnx.ModelProto:
    """The model with these layers quantised, inputs within ranges that were measured beforehand."""

    def write(node: NodeProto, weights: "Weights", seen: bool) -> list[NodeProto]:
        x = node.input[0]
        how = [f"{x}.scale", f"{x}.zero"]
        first = [
            helper.make_node("QuantizeLinear", [x, *how], [f"{x}.bytes"], name=f"{x}.quantise"),
            helper.make_node("DequantizeLinear", [f"{x}.bytes", *how], [f"{x}.back"], name=f"{x}.back"),
        ]
        back = helper.make_node(
            "DequantizeLinear", list(weights), [f"{weights.bytes}.back"], name=f"{weights.bytes}.back", axis=1
        )
        product = helper.make_node("MatMul", [f"{x}.back", f"{weights.bytes}.back"], list(node.output), name=node.name)
        return [*([] if seen else first), back, product]

    return _rewritten(model, layers, write, ranges)


class Weights(NamedTuple):
    """The names of a layer's weights in bytes, of their scales and of their zeros."""

    bytes: str
    scale: str
    zero: str


def _rewritten(
    model: onnx.ModelProto,
    layers: Collection[str],
    write: Callable[[NodeProto, Weights, bool], list[NodeProto]],
    ranges: Mapping[str, Range],
) -> onnx.ModelProto:
    """A copy of the model in which other nodes stand for the layers; `ranges` are of the inputs, if they are known."""
    wanted = set(layers)
    inputs = {node.input[0] for node in model.graph.node if node.name in wanted}
    weights = {node.input[1] for node in model.graph.node if node.name in wanted}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.initializer[:]
    seen: set[str] = set()
    for node in model.graph.node:
        if node.name not in wanted:
            copy.graph.node.append(node)
            continue
        name = node.input[1]
        copy.graph.node.extend(write(node, Weights(name, f"{name}.scale", f"{name}.zero"), node.input[0] in seen))
        seen.add(node.input[0])
    for tensor in model.graph.initializer:
        copy.graph.initializer.extend(_in_bytes(tensor) if tensor.name in weights else [tensor])
    for name in sorted(inputs & ranges.keys()):
        copy.graph.initializer.extend(_scale_of(name, ranges[name]))
    return copy


def _in_bytes(tensor: TensorProto) -> list[TensorProto]:
    """Weights (I, O) as bytes, with a scale and a zero for each output."""
    weights: NDArray[np.float32] = numpy_helper.to_array(tensor)
    scale = np.maximum(np.abs(weights).max(axis=0) / LEVELS, LEAST).astype(np.float32)  # (O)
    return [
        numpy_helper.from_array(np.rint(weights / scale).astype(np.int8), tensor.name),
        numpy_helper.from_array(scale, f"{tensor.name}.scale"),
        numpy_helper.from_array(np.zeros(len(scale), dtype=np.int8), f"{tensor.name}.zero"),
    ]


def _scale_of(name: str, range: Range) -> list[TensorProto]:
    """The scale of inputs and the byte that stands for zero, which must be one exactly."""
    low, high = min(range.low, 0.0), max(range.high, 0.0)
    scale = max((high - low) / BYTES, LEAST)
    return [
        numpy_helper.from_array(np.array(scale, dtype=np.float32), f"{name}.scale"),
        numpy_helper.from_array(np.array(round(-low / scale), dtype=np.uint8), f"{name}.zero"),
    ]


def measured(model: onnx.ModelProto, layers: Collection[str], run: Callable[[onnx.ModelProto], Engine]) -> "Meter":
    """What measures the range of the inputs of each layer."""
    wanted = set(layers)
    inputs = tuple(dict.fromkeys(node.input[0] for node in model.graph.node if node.name in wanted))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    ends = [f"{name}.{kind}" for name in inputs for kind in ("ReduceMin", "ReduceMax")]
    for end in ends:
        name, _, kind = end.rpartition(".")
        copy.graph.node.append(helper.make_node(kind, [name], [f"{end}.number"], name=end, keepdims=0))
        copy.graph.node.append(helper.make_node("Unsqueeze", [f"{end}.number", "first"], [end], name=f"{end}.row"))
    copy.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    copy.graph.node.append(helper.make_node("Concat", ends, ["ends"], name="ends", axis=0))
    copy.graph.output.append(helper.make_tensor_value_info("ends", TensorProto.FLOAT, [len(ends)]))
    return Meter(inputs, run(copy))


class Meter(NamedTuple):
    """An engine that answers images with the least and the greatest number of each input."""

    inputs: tuple[str, ...]
    engine: Engine

    def ranges(self, pixels: Bytes) -> dict[str, Range]:
        """The ranges over images (B, H, W, C), by the name of the input."""
        portions = [pixels[start : start + PORTION] for start in range(0, len(pixels), PORTION)]
        found = np.stack([self.engine.run(portion) for portion in portions])  # (portions, 2 x inputs)
        lows, highs = found[:, ::2].min(axis=0).tolist(), found[:, 1::2].max(axis=0).tolist()
        return {name: Range(low, high) for name, low, high in zip(self.inputs, lows, highs, strict=True)}
