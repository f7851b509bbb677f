"""ONNX translations of the torch functions that graphs use.  B images.

Each is called with the builder, torch's result, and the arguments of the torch function.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor

from vitral.inference.graph.onnx_trace import OnnxBuilder, Operator, Value

LAST = 2**63 - 1  # an open end of a Slice


def reshape(g: OnnxBuilder, result: Tensor, x: Tensor, *_: Any, **__: Any) -> str:
    return g.reshape(x, result.shape)


def permute(g: OnnxBuilder, result: Tensor, x: Tensor, *axes: Any) -> str:
    return add_transpose(g, g.name(x), axes[0] if isinstance(axes[0], tuple) else axes)


def transpose(g: OnnxBuilder, result: Tensor, x: Tensor, first: int = -2, second: int = -1) -> str:
    axes = list(range(x.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return add_transpose(g, g.name(x), axes)


def add_transpose(g: OnnxBuilder, name: str, axes: Sequence[int]) -> str:
    return g.node("Transpose", name, perm=list(axes))


def cast_to_float(g: OnnxBuilder, result: Tensor, x: Tensor) -> str:
    return g.name(x) if x.dtype == torch.float32 else g.node("Cast", g.name(x), to=1)


def binary(kind: str) -> Operator:
    def write(g: OnnxBuilder, result: Tensor, first: Value, second: Value) -> str:
        return g.node(kind, g.name(first), g.name(second))

    return write


def unary(kind: str) -> Operator:
    def write(g: OnnxBuilder, result: Tensor, x: Tensor) -> str:
        return g.node(kind, g.name(x))

    return write


def linear(g: OnnxBuilder, result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    product = g.node("MatMul", g.name(x), g.constant(weight.mT, "weight"))
    return product if bias is None else g.node("Add", product, g.constant(bias, "bias"))


def layer_norm(
    g: OnnxBuilder,
    result: Tensor,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> str:
    factor = g.name(torch.ones(*shape) if weight is None else weight)  # ONNX requires a weight
    shift = () if bias is None else (g.name(bias),)
    return g.node("LayerNormalization", g.name(x), factor, *shift, axis=-1, epsilon=eps)


def group_norm(g: OnnxBuilder, result: Tensor, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> str:
    """As InstanceNormalization of the groups, which all engines support; few support GroupNormalization."""
    shape = x.shape[1:]
    rows = g.node("Reshape", g.name(x), g.ints(-1, groups, math.prod(shape) // groups))
    ones, zeros = g.constant(torch.ones(groups)), g.constant(torch.zeros(groups))
    normed = g.node("InstanceNormalization", rows, ones, zeros, epsilon=eps)
    back = g.node("Reshape", normed, g.ints(-1, *shape))
    return g.node("Add", g.node("Mul", back, g.name(weight[:, None, None])), g.name(bias[:, None, None]))


def gelu(g: OnnxBuilder, result: Tensor, x: Tensor, approximate: str = "none") -> str:
    return g.node("Gelu", g.name(x), approximate=approximate)


def silu(g: OnnxBuilder, result: Tensor, x: Tensor, inplace: bool = False) -> str:
    return g.node("Mul", g.name(x), g.node("Sigmoid", g.name(x)))


def attention(
    g: OnnxBuilder, result: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **how: Any
) -> str:
    scale = how.get("scale") or q.shape[-1] ** -0.5
    queries = g.name(q) if scale == 1.0 else g.node("Mul", g.name(q), g.name(scale))
    logits = g.node("MatMul", queries, add_transpose(g, g.name(k), (0, 1, 3, 2)))
    biased = logits if attn_mask is None else g.node("Add", logits, g.name(attn_mask))
    return g.node("MatMul", g.node("Softmax", biased, axis=-1), g.name(v))


def pad(g: OnnxBuilder, result: Tensor, x: Tensor, sizes: Sequence[int], mode: str, value: float | None) -> str:
    if not any(sizes):
        return g.name(x)
    pairs = [(0, 0)] * (x.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
    befores, afters = zip(*pairs, strict=True)
    return g.node("Pad", g.name(x), g.ints(*befores, *afters), g.name(value or 0.0))


def cat(g: OnnxBuilder, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> str:
    assert dim, "no concatenation along the batch"
    full = [g.name(tensor) for tensor in tensors if 0 not in tensor.shape[1:]]
    return g.node("Concat", *full, axis=dim) if len(full) > 1 else full[0]


def split(g: OnnxBuilder, result: Sequence[Tensor], x: Tensor, *_: Any, dim: int = 0) -> list[str]:
    sizes = g.ints(*(part.shape[dim] for part in result))
    return g.nodes_with_outputs("Split", g.name(x), sizes, outputs=len(result), axis=dim)


def unbind(g: OnnxBuilder, result: Sequence[Tensor], x: Tensor, dim: int) -> list[str]:
    slices = g.nodes_with_outputs("Split", g.name(x), outputs=len(result), axis=dim, num_outputs=len(result))
    return [g.node("Squeeze", each, g.ints(dim)) for each in slices]


def getitem(g: OnnxBuilder, result: Tensor, x: Tensor, index: Any) -> str:
    """Slices, integers and new axes: `x[:, 0]`, `x[:, :, 3:]`, `x[:, None]`."""
    indices = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in indices:
        ellipsis = indices.index(Ellipsis)
        indices[ellipsis : ellipsis + 1] = [slice(None)] * (x.ndim - len(indices) + 1 + indices.count(None))
    name, axis = g.name(x), 0
    dropped: list[int] = []
    new: list[int] = []
    for item in indices:
        if item is None:
            new.append(axis + len(new) - len(dropped))
            continue
        start, end = (
            (item.start or 0, LAST if item.stop is None else item.stop)
            if isinstance(item, slice)
            else (item, item + 1 or LAST)
        )
        if (start, end) != (0, LAST):
            name = g.node("Slice", name, *(g.ints(each) for each in (start, end, axis)))
        if not isinstance(item, slice):
            dropped.append(axis)
        axis += 1
    name = g.node("Squeeze", name, g.ints(*dropped)) if dropped else name
    return g.node("Unsqueeze", name, g.ints(*new)) if new else name


def mean(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int | Sequence[int]) -> str:
    axes = (dim,) if isinstance(dim, int) else dim
    return g.node("ReduceMean", g.name(x), g.ints(*axes), keepdims=0)


def gather(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int, index: Tensor) -> str:
    """The same indices for every image and head, as one Gather over the flattened last two dimensions."""
    assert dim == -1
    assert all(step == 0 for step in index.stride()[:-2])
    rows, width = x.shape[-2:]
    first = index[(0,) * (index.ndim - 2)]  # (rows, columns)
    indices = (first + width * torch.arange(rows)[:, None]).flatten()
    flat = g.node("Reshape", g.name(x), g.ints(-1, *x.shape[1:-2], rows * width))
    gathered = g.node("Gather", flat, g.constant(indices), axis=x.ndim - 2)
    return g.node("Reshape", gathered, g.ints(-1, *result.shape[1:]))


def repeat_interleave(g: OnnxBuilder, result: Tensor, x: Tensor, count: int, dim: int) -> str:
    assert dim == 0, "each image once for every window"
    expanded = g.node("Unsqueeze", g.name(x), g.ints(1))
    copies = g.node("Expand", expanded, g.ints(1, count, *(1 for _ in x.shape[1:])))
    return g.node("Reshape", copies, g.ints(-1, *x.shape[1:]))


def conv2d(g: OnnxBuilder, result: Tensor, x: Tensor, weight: Tensor, stride: int) -> str:
    kernel = g.constant(weight, "weight")
    return g.node("Conv", g.name(x), kernel, strides=[stride, stride], kernel_shape=list(weight.shape[2:]))


def max_pool2d(g: OnnxBuilder, result: Tensor, x: Tensor, kernel: int, stride: int, *_: Any, **__: Any) -> str:
    return g.node("MaxPool", g.name(x), kernel_shape=[kernel] * 2, strides=[stride] * 2)


def avg_pool2d(
    g: OnnxBuilder, result: Tensor, x: Tensor, kernel: int, stride: int, padding: int, count_include_pad: bool
) -> str:
    sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
    return g.node("AveragePool", g.name(x), count_include_pad=int(count_include_pad), **sizes)


def normalize(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int, eps: float = 1e-12, **_: Any) -> str:
    length = g.node("ReduceL2", g.name(x), g.ints(dim), keepdims=1)
    return g.node("Div", g.name(x), g.node("Max", length, g.name(eps)))


def index_select(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int, index: Tensor) -> str:
    return g.node("Gather", g.name(x), g.name(index), axis=dim)


def take(g: OnnxBuilder, result: Tensor, x: Tensor, index: Tensor) -> str:
    assert x.ndim == 1
    return g.node("Gather", g.name(x), g.name(index), axis=0)


def take_along_dim(g: OnnxBuilder, result: Tensor, x: Tensor, index: Tensor, dim: int) -> str:
    """Whole rows of each image: GatherElements would copy element by element."""
    assert dim == 1
    assert index.shape[2:] == (1,), "one index a row"
    return g.node("GatherND", g.name(x), g.name(index), batch_dims=1)


def amax(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int) -> str:
    return g.node("ReduceMax", g.name(x), g.ints(dim), keepdims=0)


def topk(g: OnnxBuilder, result: Sequence[Tensor], x: Tensor, count: int, dim: int, largest: bool = True) -> list[str]:
    return g.nodes_with_outputs("TopK", g.name(x), g.ints(count), outputs=2, axis=dim, largest=int(largest))


def reduce_sum(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int, keepdim: bool = False) -> str:
    return g.node("ReduceSum", g.name(x), g.ints(dim), keepdims=int(keepdim))


def where(g: OnnxBuilder, result: Tensor, condition: Tensor, first: Tensor | float, second: Tensor | float) -> str:
    """A plain number gets the dtype of the result."""
    branches = (
        each if isinstance(each, Tensor) else torch.tensor(each, dtype=result.dtype) for each in (first, second)
    )
    return g.node("Where", g.name(condition), *map(g.name, branches))


def ones_like(g: OnnxBuilder, result: Tensor, x: Tensor) -> str:
    one = numpy_helper.from_array(torch.ones(1).numpy())
    return g.node("ConstantOfShape", g.node("Shape", g.name(x)), value=one)


OPERATORS: dict[Callable[..., Any], Operator] = {
    F.avg_pool2d: avg_pool2d,
    F.conv2d: conv2d,
    F.dropout: lambda g, result, x, *_, **__: g.name(x),
    F.gelu: gelu,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.linear: linear,
    F.max_pool2d: max_pool2d,
    F.normalize: normalize,
    F.pad: pad,
    F.scaled_dot_product_attention: attention,
    F.silu: silu,
    Tensor.__eq__: binary("Equal"),
    Tensor.__getitem__: getitem,
    Tensor.add: binary("Add"),
    Tensor.amax: amax,
    Tensor.argmax: lambda g, result, x, dim: g.node("ArgMax", g.name(x), axis=dim, keepdims=0),
    Tensor.chunk: split,
    Tensor.div: binary("Div"),
    Tensor.flatten: reshape,
    Tensor.float: cast_to_float,
    Tensor.gather: gather,
    Tensor.index_select: index_select,
    Tensor.log: unary("Log"),
    Tensor.mT.__get__: transpose,  # type: ignore[attr-defined]
    Tensor.matmul: binary("MatMul"),
    Tensor.mean: mean,
    Tensor.mul: binary("Mul"),
    Tensor.permute: permute,
    Tensor.relu: unary("Relu"),
    Tensor.repeat_interleave: repeat_interleave,
    Tensor.softmax: lambda g, result, x, dim: g.node("Softmax", g.name(x), axis=dim),
    Tensor.sub: binary("Sub"),
    Tensor.sum: reduce_sum,
    Tensor.take: take,
    Tensor.take_along_dim: take_along_dim,
    Tensor.tanh: unary("Tanh"),
    Tensor.topk: topk,
    Tensor.transpose: transpose,
    Tensor.unbind: unbind,
    Tensor.unflatten: reshape,
    torch.cat: cat,
    torch.ones_like: ones_like,
    torch.sigmoid: unary("Sigmoid"),
    torch.where: where,
}
