"""Resizing inside an ONNX model, to exactly the pixels that Vitral's preprocessing gives.

A line of pixels is multiplied by a matrix of integer weights (2 ** bits times the real ones) and the sums are rounded,
first along rows and then along columns, as torch resizes uint8. ONNX's own Resize rounds differently.
B images, H x W pixels, C channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.crop import CenterCrop, Filter, Rounding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import MAX_BITS, RADIUS, WEIGHT_LIMIT, resize_taps
from vitral.inference.engines.engine import INPUT_NAME
from vitral.inference.graph.onnx_ops import OnnxBuilder

FLOAT, BYTE, INTEGER, DOUBLE = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT64, TensorProto.DOUBLE
TORCH_DTYPES: dict[int, torch.dtype] = {FLOAT: torch.float32, INTEGER: torch.int64, DOUBLE: torch.float64}
PREFIX = "resize"  # of the names of nodes and constants
EXACT_BITS = 19  # up to which sums of half bytes are exact in float32, negative weights included


@dataclass(frozen=True)
class OnnxValue:
    """An output of a node, with operators: `(x * 2 + 1).floor()` adds three nodes. Plain numbers get its dtype."""

    builder: OnnxBuilder
    name: str
    dtype: int  # TensorProto.DataType; of a comparison that of what is compared

    def op(self, kind: str, *others: "OnnxValue | Tensor | float", dtype: int = 0, **attributes: Any) -> "OnnxValue":
        """Apply an ONNX operator to it and others; without `dtype` the output has its own."""
        name = self.builder.node(kind, self.name, *(self.like(other).name for other in others), **attributes)
        return OnnxValue(self.builder, name, dtype or self.dtype)

    def like(self, value: "OnnxValue | Tensor | float") -> "OnnxValue":
        """A plain number as a constant of the same dtype; a tensor as a constant."""
        if isinstance(value, OnnxValue):
            return value
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=TORCH_DTYPES[self.dtype])
        return OnnxValue(self.builder, self.builder.constant(tensor), self.dtype)

    __add__ = partialmethod(op, "Add")
    __sub__ = partialmethod(op, "Sub")
    __mul__ = partialmethod(op, "Mul")
    __truediv__ = partialmethod(op, "Div")
    __matmul__ = partialmethod(op, "MatMul")
    __lt__ = partialmethod(op, "Less")
    floor = partialmethod(op, "Floor")

    def to(self, dtype: int) -> "OnnxValue":
        return self.op("Cast", dtype=dtype, to=dtype)

    def where(self, condition: "OnnxValue", other: "OnnxValue | float") -> "OnnxValue":
        """Itself where the condition holds, `other` elsewhere."""
        return condition.op("Where", self, self.like(other), dtype=self.dtype)

    def transpose(self, *axes: int) -> "OnnxValue":
        return self.op("Transpose", perm=list(axes))

    def length(self, axis: int) -> "OnnxValue":
        """The length of an axis, an int64 scalar."""
        return self.op("Shape", dtype=INTEGER).op("Gather", axis)

    def arange(self) -> "OnnxValue":
        """0, 1, 2, ... below it."""
        return self.like(0).op("Range", self, 1)


class ResizeWeights(NamedTuple):
    """The weights that resize a line of pixels."""

    weights: OnnxValue  # (new pixels, old pixels), integers in float64
    unit: OnnxValue  # the sum of the weights of a new pixel, a power of two


def add_resizing(
    model: onnx.ModelProto, preprocessing: Preprocessing, input_size: Size | Literal["dynamic"]
) -> onnx.ModelProto:
    """The model with resizing before it: it takes images of another size, or of any."""
    builder = OnnxBuilder(lambda: PREFIX)
    images = OnnxValue(builder, INPUT_NAME, BYTE)
    sides: Sequence[int | str]
    if input_size == "dynamic":
        sides, resized = ("height", "width"), resize_any_size(images, preprocessing)
    else:
        sides, resized = input_size, resize_fixed_size(images, preprocessing, input_size)
    joined = onnx.ModelProto()
    joined.CopyFrom(model)
    graph = joined.graph
    for node in graph.node:
        node.input[:] = [resized.name if name == INPUT_NAME else name for name in node.input]
    nodes = [*builder.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(each.numpy(), name) for name, each in builder.constants.items())
    batch, *_ = graph.input[0].type.tensor_type.shape.dim
    shape = [batch.dim_param or batch.dim_value, *sides, preprocessing.decoding.channels]
    graph.input[0].CopyFrom(helper.make_tensor_value_info(INPUT_NAME, BYTE, shape))
    return joined


def resize_any_size(images: OnnxValue, preprocessing: Preprocessing) -> OnnxValue:
    """Resize and crop images (B, H, W, C) of any size; needs float64, which OpenVINO lacks."""
    crop, image_size = preprocessing.crop, preprocessing.image_size
    height, width = images.length(1), images.length(2)
    lengths = (height.like(image_size.height), width.like(image_size.width))
    rounding: Rounding = "even"
    if isinstance(crop, CenterCrop):
        (rows, columns), rounding = crop.filled(image_size), crop.rounding
        lengths = (height.like(rows), width.like(columns))
        if crop.aspect == "keep":
            lengths = ((height * columns / width).op("Max", rows), (width * rows / height).op("Max", columns))
    vertical = resize_weights(height, lengths[0], crop.filter)
    horizontal = resize_weights(width, lengths[1], crop.filter)
    rows_kept = _center_rows(vertical.weights, lengths[0], image_size.height, rounding)
    columns_kept = _center_rows(horizontal.weights, lengths[1], image_size.width, rounding).transpose(1, 0)
    levels = images.transpose(0, 3, 1, 2).to(DOUBLE)  # (B, C, H, W)
    levels = _round(levels @ columns_kept / horizontal.unit)
    levels = _round(rows_kept @ levels / vertical.unit)
    return levels.to(BYTE).transpose(0, 2, 3, 1)  # (B, image_size, C)


def resize_weights(old: OnnxValue, new: OnnxValue, filter: Filter) -> ResizeWeights:
    """The weights that resize `old` pixels to `new`."""
    olds, news = old.to(DOUBLE), new.to(DOUBLE)
    scale = olds / news
    stretch = scale.op("Max", 1.0)
    centers = ((news.arange() + 0.5) * scale).op("Unsqueeze", torch.tensor([1]))  # (new, 1)
    radius, pixels = stretch * RADIUS[filter], olds.arange()  # (old)
    first, end = (centers - radius + 0.5).floor(), (centers + radius + 0.5).floor()  # (new, 1)
    distance = (pixels - centers + 0.5).op("Abs") * (stretch.like(1.0) / stretch)  # (new, old)
    raw = _filter_weight(distance, filter).where((pixels < first).op("Not").op("And", pixels < end), 0.0)
    normalized = raw / raw.op("ReduceSum", torch.tensor([1]), keepdims=1)
    powers = scale.like(torch.tensor([2.0**bits for bits in range(1, MAX_BITS + 1)], dtype=torch.float64))
    fits = (powers * normalized.op("ReduceMax", keepdims=0) + 0.5).floor() < WEIGHT_LIMIT
    unit = scale.like(2.0).op("Pow", fits.to(DOUBLE).op("ReduceSum", keepdims=0))
    return ResizeWeights(normalized.op("Sign") * (normalized.op("Abs") * unit + 0.5).floor(), unit)


def _filter_weight(x: OnnxValue, filter: Filter) -> OnnxValue:
    """The weight of a pixel at this distance."""
    if filter == "bilinear":
        return (x.like(1.0) - x).op("Max", 0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return near.where(x < 1.0, far.where(x < 2.0, 0.0))


def _center_rows(weights: OnnxValue, length: OnnxValue, kept: int, rounding: Rounding) -> OnnxValue:
    """The rows of the center crop."""
    half = ((length.to(DOUBLE) - kept) / 2.0).op("Round" if rounding == "even" else "Floor")
    first = half.to(INTEGER).op("Unsqueeze", torch.tensor([0]))
    return weights.op("Slice", first, first + kept)


def _round(levels: OnnxValue) -> OnnxValue:
    return (levels + 0.5).floor().op("Clip", 0.0, 255.0)


def resize_fixed_size(images: OnnxValue, preprocessing: Preprocessing, size: Size) -> OnnxValue:
    """Resize and crop images (B, H, W, C) of one size; exact in float32."""
    plan = preprocessing.crop.plan(size, preprocessing.image_size)
    vertical = fixed_resize_weights(size.height, plan.resize_to.height, plan.filter)
    horizontal = fixed_resize_weights(size.width, plan.resize_to.width, plan.filter)
    top, left, height, width = plan.window
    levels = images.transpose(0, 3, 1, 2).to(FLOAT)  # (B, C, H, W)
    rows = levels.like(vertical.weights[top : top + height].contiguous())  # (image_size.height, H)
    columns = levels.like(horizontal.weights[left : left + width].mT.contiguous())  # (W, image_size.width)
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
        message, hint = f"resizing {old} pixels to {new} in the graph would not be exact", "use a smaller input size"
        raise ConfigError(message, code="config.out_of_range", where="--image-size", hint=hint)
    return FixedResizeWeights(torch.from_numpy(taps.matrix(old).astype(np.float32)), taps.bits)


def _multiply_exactly(levels: OnnxValue, product: Callable[[OnnxValue], OnnxValue], bits: int) -> OnnxValue:
    """The rounded sums. The upper and lower four bits are multiplied apart, so that float32 sums are exact."""
    upper = (levels / 16.0).floor()
    sums, rest = product(upper) * 2.0 ** (4 - bits), product(levels - upper * 16.0) * 2.0**-bits
    whole = sums.floor()
    return (whole + (sums - whole + rest + 0.5).floor()).op("Clip", 0.0, 255.0)
