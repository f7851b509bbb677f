"""Resizing inside a graph: the very pixels that `crop_and_resize` gives, so that whole pictures may come in.

A line of pixels is resized by a matrix of whole numbers, 2 ** bits times the weights, and the sums rounded, first along
the rows and then down the columns: what torch does with uint8. ONNX has an operator that resizes, but it rounds
otherwise.  B pictures, H x W pixels, C channels.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, compose, helper
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.crop import CenterCrop, Filter
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import MAX_BITS, RADIUS, WEIGHT_LIMIT, resize_taps
from vitral.inference.engines.engine import INPUT_NAME
from vitral.inference.graph.onnx import IR_VERSION, OPSET
from vitral.inference.graph.onnx_values import BYTE, DOUBLE, FLOAT, INTEGER, OnnxNodes, OnnxValue

PART, SEEN = "resize", "seen"
EXACT_BITS = 19  # with which sums of half bytes are exact in float32, even if some weights are below zero


class ResizeWeights(NamedTuple):
    """How lines of pixels become others."""

    weights: OnnxValue  # (new pixels, old pixels), whole numbers in float64
    unit: OnnxValue  # what those of a new pixel add up to, a power of two


def add_resizing(model: onnx.ModelProto, needs: Preprocessing, incoming: Size | Literal["dynamic"]) -> onnx.ModelProto:
    """The model behind its resizing: it takes pictures of another size, or of any."""
    sheet = OnnxNodes(PART)
    pictures = OnnxValue(sheet, f"{PART}.{INPUT_NAME}", BYTE)
    seen = resize_any_size(pictures, needs) if incoming == "dynamic" else resize_fixed_size(pictures, needs, incoming)
    sheet.nodes.append(helper.make_node("Identity", [seen.name], [SEEN]))
    channels, batch = needs.decoding.channels, model.graph.input[0].type.tensor_type.shape.dim[0]
    size = batch.dim_param or batch.dim_value
    sides = ("height", "width") if incoming == "dynamic" else incoming
    front = helper.make_graph(
        sheet.nodes,
        PART,
        [helper.make_tensor_value_info(pictures.name, TensorProto.UINT8, [size, *sides, channels])],
        [helper.make_tensor_value_info(SEEN, TensorProto.UINT8, [size, *needs.image_size, channels])],
        sheet.constants,
    )
    joined = compose.merge_models(_model(front), model, [(SEEN, INPUT_NAME)])
    joined.graph.name = model.graph.name
    for node in joined.graph.node:
        node.input[:] = [INPUT_NAME if name == pictures.name else name for name in node.input]
    joined.graph.input[0].name = INPUT_NAME
    joined.producer_name, joined.producer_version = model.producer_name, model.producer_version
    return joined


def resize_any_size(pictures: OnnxValue, needs: Preprocessing) -> OnnxValue:
    """What the model sees of pictures (B, H, W, C); in float64, which OpenVINO has not."""
    view, image = needs.crop, needs.image_size
    high, wide = pictures.side(1), pictures.side(2)
    lengths = (high.like(image.height), wide.like(image.width))
    if isinstance(view, CenterCrop):
        rows, columns = (int(side / view.fraction) for side in image)
        lengths = ((high * columns / wide).do("Max", rows), (wide * rows / high).do("Max", columns))
    upright, across = resize_weights(high, lengths[0], view.filter), resize_weights(wide, lengths[1], view.filter)
    levels = pictures.turned(0, 3, 1, 2).to(DOUBLE)  # (B, C, H, W)
    levels = _level(levels @ _middle(across.weights, lengths[1], image.width).turned(1, 0) / across.unit)
    levels = _level(_middle(upright.weights, lengths[0], image.height) @ levels / upright.unit)
    return levels.to(BYTE).turned(0, 2, 3, 1)  # (B, image, C)


def resize_weights(part: OnnxValue, length: OnnxValue, how: Filter) -> ResizeWeights:
    """The weights with which so many pixels become another number of them."""
    parts, lengths = part.to(DOUBLE), length.to(DOUBLE)
    scale = parts / lengths
    stretch = scale.do("Max", 1.0)
    centers = ((lengths.counted() + 0.5) * scale).do("Unsqueeze", _axes(part, 1))  # (length, 1)
    reach, pixels = stretch * RADIUS[how], parts.counted()  # (part)
    within = (pixels >= (centers - reach + 0.5).floor()) & (pixels < (centers + reach + 0.5).floor())
    distance = (pixels - centers + 0.5).do("Abs") * (stretch.like(1.0) / stretch)  # (length, part)
    raw = _counts(distance, how).where(within, 0.0)
    share = raw / raw.along("ReduceSum", 1)
    powers = part.sheet.constant(torch.tensor([2.0**bits for bits in range(1, MAX_BITS + 1)], dtype=torch.float64))
    fits = (powers * share.all("ReduceMax") + 0.5).floor() < WEIGHT_LIMIT
    unit = scale.like(2.0).do("Pow", fits.to(DOUBLE).all("ReduceSum"))
    return ResizeWeights(share.do("Sign") * (share.do("Abs") * unit + 0.5).floor(), unit)


def _counts(x: OnnxValue, how: Filter) -> OnnxValue:
    """What a pixel at a distance counts."""
    if how == "bilinear":
        return (x.like(1.0) - x).do("Max", 0.0)
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    beyond = far.where(x < 2.0, 0.0)
    return OnnxValue(x.sheet, x.sheet.node("Where", (x < 1.0).name, near.name, beyond.name), x.kind)


def _middle(weights: OnnxValue, length: OnnxValue, kept: int) -> OnnxValue:
    """The rows that make the pixels in the middle. Halves go to the even side, as in Python."""
    first = ((length.to(DOUBLE) - kept) / 2.0).do("Round").to(INTEGER).do("Unsqueeze", _axes(length, 0))
    return weights.do("Slice", first, first + kept)


def _level(levels: OnnxValue) -> OnnxValue:
    return (levels + 0.5).floor().do("Clip", 0.0, 255.0)


def _axes(value: OnnxValue, *axes: int) -> OnnxValue:
    return value.sheet.constant(torch.tensor(axes))


def resize_fixed_size(pictures: OnnxValue, needs: Preprocessing, size: Size) -> OnnxValue:
    """What the model sees of pictures of this size (B, H, W, C); exact in float32 too."""
    plan = needs.crop.plan(size, needs.image_size)
    upright = fixed_resize_weights(size.height, plan.resize_to.height, plan.filter)
    across = fixed_resize_weights(size.width, plan.resize_to.width, plan.filter)
    top, left, high, wide = plan.window
    rows = pictures.sheet.constant(upright.weights[top : top + high].contiguous())  # (image.height, H)
    columns = pictures.sheet.constant(across.weights[left : left + wide].mT.contiguous())  # (W, image.width)
    levels = pictures.turned(0, 3, 1, 2).to(FLOAT)  # (B, C, H, W)
    levels = _in_halves(levels, lambda half: half @ columns, across.bits)
    levels = _in_halves(levels, lambda half: rows @ half, upright.bits)
    return levels.to(BYTE).turned(0, 2, 3, 1)  # (B, image, C)


class FixedResizeWeights(NamedTuple):
    """How lines of a known length become others."""

    weights: Tensor  # (new pixels, old pixels), whole numbers in float32
    bits: int


def fixed_resize_weights(part: int, length: int, how: Filter) -> FixedResizeWeights:
    """The weights with which `part` pixels become `length`, worked out now."""
    taps = resize_taps(part, length, how)
    if taps.bits > EXACT_BITS:
        message = f"a side of {part} pixels is too long to become {length} within the graph, to the last bit"
        raise ConfigError(
            message, code="config.out_of_range", where="--image-size", hint="let pictures come in smaller"
        )
    return FixedResizeWeights(torch.from_numpy(taps.matrix(part).astype(np.float32)), taps.bits)


def _in_halves(levels: OnnxValue, product: Callable[[OnnxValue], OnnxValue], bits: int) -> OnnxValue:
    """The levels that the weights make, to the nearest: the upper and lower four bits apart, lest a sum be rounded."""
    upper = (levels / 16.0).floor()
    sums, rest = product(upper) * 2.0 ** (4 - bits), product(levels - upper * 16.0) * 2.0**-bits
    whole = sums.floor()
    return (whole + (sums - whole + rest + 0.5).floor()).do("Clip", 0.0, 255.0)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
