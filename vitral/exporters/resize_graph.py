"""Resizing inside an ONNX model, to exactly the pixels that Vitral's preprocessing gives.

A line of pixels is multiplied by a matrix of integer weights (2 ** bits times the real ones) and the sums are rounded,
first along rows and then along columns, as torch resizes uint8. ONNX's own Resize rounds differently.
B images, H x W pixels, C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, compose, helper, numpy_helper
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.crop import CenterCrop, Filter
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import MAX_BITS, RADIUS, WEIGHT_LIMIT, resize_taps
from vitral.inference.engines.engine import INPUT_NAME
from vitral.inference.graph.onnx import IR_VERSION, OPSET

FLOAT, BYTE, INTEGER, DOUBLE = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT64, TensorProto.DOUBLE
TORCH_DTYPES: dict[int, torch.dtype] = {FLOAT: torch.float32, INTEGER: torch.int64, DOUBLE: torch.float64}
PREFIX, RESIZED = "resize", "seen"
EXACT_BITS = 19  # up to which sums of half bytes are exact in float32, negative weights included


@dataclass(frozen=True)
class OnnxNodes:
    """Nodes in order and the constants that they use; all names start with `prefix`."""

    prefix: str
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{self.prefix}.{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: torch.Tensor) -> "OnnxValue":
        """Add a constant."""
        name = f"{self.prefix}.constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value.numpy(), name))
        dtype = next(onnx_dtype for onnx_dtype, dtype in TORCH_DTYPES.items() if dtype == value.dtype)
        return OnnxValue(self, name, dtype)


@dataclass(frozen=True)
class OnnxValue:
    """An output of a node, with operators: `(x * 2 + 1).floor()` adds three nodes. Plain numbers get its dtype."""

    nodes: OnnxNodes
    name: str
    dtype: int  # TensorProto.DataType

    def __add__(self, other: "OnnxValue | float") -> "OnnxValue":
        return self.op("Add", other)

    def __sub__(self, other: "OnnxValue | float") -> "OnnxValue":
        return self.op("Sub", other)

    def __mul__(self, other: "OnnxValue | float") -> "OnnxValue":
        return self.op("Mul", other)

    def __truediv__(self, other: "OnnxValue | float") -> "OnnxValue":
        return self.op("Div", other)

    def __matmul__(self, other: "OnnxValue") -> "OnnxValue":
        return self.op("MatMul", other)

    def __lt__(self, other: "OnnxValue | float") -> "OnnxValue":
        return self.op("Less", other)

    def __ge__(self, other: "OnnxValue | float") -> "OnnxValue":
        return self.op("GreaterOrEqual", other)

    def __and__(self, other: "OnnxValue") -> "OnnxValue":
        return self.op("And", other)

    def op(self, operator: str, *others: "OnnxValue | float", **attributes: Any) -> "OnnxValue":
        """Apply an ONNX operator to it and others."""
        names = (self.name, *(self.like(other).name for other in others))
        return OnnxValue(self.nodes, self.nodes.node(operator, *names, **attributes), self.dtype)

    def like(self, number: "OnnxValue | float") -> "OnnxValue":
        """A plain number as a constant of the same dtype."""
        if isinstance(number, OnnxValue):
            return number
        return self.nodes.constant(torch.tensor(number, dtype=TORCH_DTYPES[self.dtype]))

    def floor(self) -> "OnnxValue":
        return self.op("Floor")

    def to(self, dtype: int) -> "OnnxValue":
        return OnnxValue(self.nodes, self.nodes.node("Cast", self.name, to=dtype), dtype)

    def where(self, condition: "OnnxValue", other: float) -> "OnnxValue":
        """Itself where the condition holds, `other` elsewhere."""
        return OnnxValue(
            self.nodes, self.nodes.node("Where", condition.name, self.name, self.like(other).name), self.dtype
        )

    def transpose(self, *axes: int) -> "OnnxValue":
        return self.op("Transpose", perm=list(axes))

    def reduce(self, operator: str, axis: int) -> "OnnxValue":
        """A reduction that keeps the dimension."""
        return OnnxValue(
            self.nodes,
            self.nodes.node(operator, self.name, self.nodes.constant(torch.tensor([axis])).name, keepdims=1),
            self.dtype,
        )

    def reduce_all(self, operator: str) -> "OnnxValue":
        """A reduction to a scalar."""
        return self.op(operator, keepdims=0)

    def length(self, axis: int) -> "OnnxValue":
        """The length of an axis, an int64 scalar."""
        shape = self.nodes.node("Shape", self.name)
        index = self.nodes.constant(torch.tensor(axis))
        return OnnxValue(self.nodes, self.nodes.node("Gather", shape, index.name), INTEGER)

    def arange(self) -> "OnnxValue":
        """0, 1, 2, ... below it."""
        zero, one = self.like(0), self.like(1)
        return OnnxValue(self.nodes, self.nodes.node("Range", zero.name, self.name, one.name), self.dtype)


class ResizeWeights(NamedTuple):
    """The weights that resize a line of pixels."""

    weights: OnnxValue  # (new pixels, old pixels), integers in float64
    unit: OnnxValue  # the sum of the weights of a new pixel, a power of two


def add_resizing(
    model: onnx.ModelProto, preprocessing: Preprocessing, input_size: Size | Literal["dynamic"]
) -> onnx.ModelProto:
    """The model with resizing before it: it takes images of another size, or of any."""
    nodes = OnnxNodes(PREFIX)
    images = OnnxValue(nodes, f"{PREFIX}.{INPUT_NAME}", BYTE)
    resized = (
        resize_any_size(images, preprocessing)
        if input_size == "dynamic"
        else resize_fixed_size(images, preprocessing, input_size)
    )
    nodes.nodes.append(helper.make_node("Identity", [resized.name], [RESIZED]))
    channels, batch = preprocessing.decoding.channels, model.graph.input[0].type.tensor_type.shape.dim[0]
    size = batch.dim_param or batch.dim_value
    sides = ("height", "width") if input_size == "dynamic" else input_size
    front = helper.make_graph(
        nodes.nodes,
        PREFIX,
        [helper.make_tensor_value_info(images.name, TensorProto.UINT8, [size, *sides, channels])],
        [helper.make_tensor_value_info(RESIZED, TensorProto.UINT8, [size, *preprocessing.image_size, channels])],
        nodes.constants,
    )
    joined = compose.merge_models(_model(front), model, [(RESIZED, INPUT_NAME)])
    joined.graph.name = model.graph.name
    for node in joined.graph.node:
        node.input[:] = [INPUT_NAME if name == images.name else name for name in node.input]
    joined.graph.input[0].name = INPUT_NAME
    joined.producer_name, joined.producer_version = model.producer_name, model.producer_version
    return joined


def resize_any_size(images: OnnxValue, preprocessing: Preprocessing) -> OnnxValue:
    """Resize and crop images (B, H, W, C) of any size; needs float64, which OpenVINO lacks."""
    crop, image_size = preprocessing.crop, preprocessing.image_size
    height, width = images.length(1), images.length(2)
    lengths = (height.like(image_size.height), width.like(image_size.width))
    if isinstance(crop, CenterCrop):
        rows, columns = (int(side / crop.fraction) for side in image_size)
        lengths = ((height * columns / width).op("Max", rows), (width * rows / height).op("Max", columns))
    vertical, horizontal = (
        resize_weights(height, lengths[0], crop.filter),
        resize_weights(width, lengths[1], crop.filter),
    )
    levels = images.transpose(0, 3, 1, 2).to(DOUBLE)  # (B, C, H, W)
    levels = _round(
        levels @ _center_rows(horizontal.weights, lengths[1], image_size.width).transpose(1, 0) / horizontal.unit
    )
    levels = _round(_center_rows(vertical.weights, lengths[0], image_size.height) @ levels / vertical.unit)
    return levels.to(BYTE).transpose(0, 2, 3, 1)  # (B, image_size, C)


def resize_weights(old: OnnxValue, new: OnnxValue, filter: Filter) -> ResizeWeights:
    """The weights that resize `old` pixels to `new`."""
    olds, news = old.to(DOUBLE), new.to(DOUBLE)
    scale = olds / news
    stretch = scale.op("Max", 1.0)
    centers = ((news.arange() + 0.5) * scale).op("Unsqueeze", _axes(old, 1))  # (new, 1)
    radius, pixels = stretch * RADIUS[filter], olds.arange()  # (old)
    within = (pixels >= (centers - radius + 0.5).floor()) & (pixels < (centers + radius + 0.5).floor())
    distance = (pixels - centers + 0.5).op("Abs") * (stretch.like(1.0) / stretch)  # (new, old)
    raw = _filter_weight(distance, filter).where(within, 0.0)
    normalized = raw / raw.reduce("ReduceSum", 1)
    powers = old.nodes.constant(torch.tensor([2.0**bits for bits in range(1, MAX_BITS + 1)], dtype=torch.float64))
    fits = (powers * normalized.reduce_all("ReduceMax") + 0.5).floor() < WEIGHT_LIMIT
    unit = scale.like(2.0).op("Pow", fits.to(DOUBLE).reduce_all("ReduceSum"))
    return ResizeWeights(normalized.op("Sign") * (normalized.op("Abs") * unit + 0.5).floor(), unit)


def _filter_weight(x: OnnxValue, filter: Filter) -> OnnxValue:
    """The weight of a pixel at this distance."""
    if filter == "bilinear":
        return (x.like(1.0) - x).op("Max", 0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    beyond = far.where(x < 2.0, 0.0)
    return OnnxValue(x.nodes, x.nodes.node("Where", (x < 1.0).name, near.name, beyond.name), x.dtype)


def _center_rows(weights: OnnxValue, length: OnnxValue, kept: int) -> OnnxValue:
    """The rows of the center crop. Halves are rounded to even, as in Python."""
    first = ((length.to(DOUBLE) - kept) / 2.0).op("Round").to(INTEGER).op("Unsqueeze", _axes(length, 0))
    return weights.op("Slice", first, first + kept)


def _round(levels: OnnxValue) -> OnnxValue:
    return (levels + 0.5).floor().op("Clip", 0.0, 255.0)


def _axes(value: OnnxValue, *axes: int) -> OnnxValue:
    return value.nodes.constant(torch.tensor(axes))


def resize_fixed_size(images: OnnxValue, preprocessing: Preprocessing, size: Size) -> OnnxValue:
    """Resize and crop images (B, H, W, C) of one size; exact in float32."""
    plan = preprocessing.crop.plan(size, preprocessing.image_size)
    vertical = fixed_resize_weights(size.height, plan.resize_to.height, plan.filter)
    horizontal = fixed_resize_weights(size.width, plan.resize_to.width, plan.filter)
    top, left, height, width = plan.window
    rows = images.nodes.constant(vertical.weights[top : top + height].contiguous())  # (image_size.height, H)
    columns = images.nodes.constant(horizontal.weights[left : left + width].mT.contiguous())  # (W, image_size.width)
    levels = images.transpose(0, 3, 1, 2).to(FLOAT)  # (B, C, H, W)
    levels = _multiply_exactly(levels, lambda half: half @ columns, horizontal.bits)
    levels = _multiply_exactly(levels, lambda half: rows @ half, vertical.bits)
    return levels.to(BYTE).transpose(0, 2, 3, 1)  # (B, image_size, C)


class FixedResizeWeights(NamedTuple):
    """The weights that resize a line of known length."""

    weights: Tensor  # (new pixels, old pixels), integers in float32
    bits: int


def fixed_resize_weights(old: int, new: int, filter: Filter) -> FixedResizeWeights:
    """The weights that resize `old` pixels to `new`."""
    taps = resize_taps(old, new, filter)
    if taps.bits > EXACT_BITS:
        message = f"resizing {old} pixels to {new} in the graph would not be exact"
        hint = "use a smaller input size"
        raise ConfigError(message, code="config.out_of_range", where="--image-size", hint=hint)
    return FixedResizeWeights(torch.from_numpy(taps.matrix(old).astype(np.float32)), taps.bits)


def _multiply_exactly(levels: OnnxValue, product: Callable[[OnnxValue], OnnxValue], bits: int) -> OnnxValue:
    """The rounded sums. The upper and lower four bits are multiplied apart, so that float32 sums are exact."""
    upper = (levels / 16.0).floor()
    sums, rest = product(upper) * 2.0 ** (4 - bits), product(levels - upper * 16.0) * 2.0**-bits
    whole = sums.floor()
    return (whole + (sums - whole + rest + 0.5).floor()).op("Clip", 0.0, 255.0)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
