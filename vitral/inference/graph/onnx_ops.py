"""How torch's functions that compare and choose are written in ONNX: those that merging uses.  B images.

As in `operators`: each is called with the notes, what torch made, and the arguments that torch was given.

How torch's functions are written in ONNX: those that graphs use.  B images.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor

from vitral.inference.graph.onnx_trace import Notes, Operator, Value

LAST = 2**63 - 1  # as the end of a slice: whatever is left


def reshape(notes: Notes, made: Tensor, x: Tensor, *_: Any, **__: Any) -> str:
    return notes.reshaped(x, made.shape)


def permute(notes: Notes, made: Tensor, x: Tensor, *axes: Any) -> str:
    return transposed(notes, notes.of(x), axes[0] if isinstance(axes[0], tuple) else axes)


def transpose(notes: Notes, made: Tensor, x: Tensor, first: int = -2, second: int = -1) -> str:
    axes = list(range(x.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return transposed(notes, notes.of(x), axes)


def transposed(notes: Notes, name: str, axes: Sequence[int]) -> str:
    return notes.one("Transpose", name, perm=list(axes))


def same(notes: Notes, made: Tensor, x: Tensor, *_: Any, **__: Any) -> str:
    """What is done in training only."""
    return notes.of(x)


def number(notes: Notes, made: Tensor, x: Tensor) -> str:
    return notes.of(x) if x.dtype == torch.float32 else notes.one("Cast", notes.of(x), to=1)


def pairwise(kind: str) -> Operator:
    def write(notes: Notes, made: Tensor, first: Value, second: Value) -> str:
        return notes.one(kind, notes.of(first), notes.of(second))

    return write


def single(kind: str) -> Operator:
    def write(notes: Notes, made: Tensor, x: Tensor) -> str:
        return notes.one(kind, notes.of(x))

    return write


def matmul(notes: Notes, made: Tensor, first: Tensor, second: Tensor) -> str:
    return notes.one("MatMul", notes.of(first), notes.of(second))


def linear(notes: Notes, made: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    product = notes.one("MatMul", notes.of(x), notes.constant(weight.mT, "weight"))
    return product if bias is None else notes.one("Add", product, notes.constant(bias, "bias"))


def layer_norm(
    notes: Notes, made: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> str:
    factor = notes.of(torch.ones(*shape) if weight is None else weight)  # a norm of ONNX cannot be without
    shift = () if bias is None else (notes.of(bias),)
    return notes.one("LayerNormalization", notes.of(x), factor, *shift, axis=-1, epsilon=eps)


def group_norm(notes: Notes, made: Tensor, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> str:
    """An instance norm of the groups, which every engine knows; GroupNormalization few do."""
    shape = x.shape[1:]
    rows = notes.one("Reshape", notes.of(x), notes.integers(-1, groups, math.prod(shape) // groups))
    ones, zeros = notes.constant(torch.ones(groups)), notes.constant(torch.zeros(groups))
    normed = notes.one("InstanceNormalization", rows, ones, zeros, epsilon=eps)
    back = notes.one("Reshape", normed, notes.integers(-1, *shape))
    return notes.one("Add", notes.one("Mul", back, notes.of(weight[:, None, None])), notes.of(bias[:, None, None]))


def gelu(notes: Notes, made: Tensor, x: Tensor, approximate: str = "none") -> str:
    return notes.one("Gelu", notes.of(x), approximate=approximate)


def silu(notes: Notes, made: Tensor, x: Tensor, inplace: bool = False) -> str:
    return notes.one("Mul", notes.of(x), notes.one("Sigmoid", notes.of(x)))


def softmax(notes: Notes, made: Tensor, x: Tensor, dim: int) -> str:
    return notes.one("Softmax", notes.of(x), axis=dim)


def attention(
    notes: Notes, made: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **how: Any
) -> str:
    scale = how.get("scale") or q.shape[-1] ** -0.5
    queries = notes.of(q) if scale == 1.0 else notes.one("Mul", notes.of(q), notes.of(scale))
    logits = notes.one("MatMul", queries, transposed(notes, notes.of(k), (0, 1, 3, 2)))
    biased = logits if attn_mask is None else notes.one("Add", logits, notes.of(attn_mask))
    return notes.one("MatMul", notes.one("Softmax", biased, axis=-1), notes.of(v))


def pad(notes: Notes, made: Tensor, x: Tensor, sizes: Sequence[int], mode: str, value: float | None) -> str:
    if not any(sizes):
        return notes.of(x)
    pairs = [(0, 0)] * (x.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
    befores, afters = zip(*pairs, strict=True)
    return notes.one("Pad", notes.of(x), notes.integers(*befores, *afters), notes.of(value or 0.0))


def cat(notes: Notes, made: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> str:
    assert dim, "tensors are not joined along the batch"
    full = [notes.of(tensor) for tensor in tensors if 0 not in tensor.shape[1:]]
    return notes.one("Concat", *full, axis=dim) if len(full) > 1 else full[0]


def split(notes: Notes, made: Sequence[Tensor], x: Tensor, *_: Any, dim: int = 0) -> list[str]:
    sizes = notes.integers(*(part.shape[dim] for part in made))
    return notes.node("Split", notes.of(x), sizes, outputs=len(made), axis=dim)


def unbind(notes: Notes, made: Sequence[Tensor], x: Tensor, dim: int) -> list[str]:
    places = notes.node("Split", notes.of(x), outputs=len(made), axis=dim, num_outputs=len(made))
    return [notes.one("Squeeze", place, notes.integers(dim)) for place in places]


def take(notes: Notes, made: Tensor, x: Tensor, index: Any) -> str:
    """Slices, numbers and new dimensions, as `x[:, 0]`, `x[:, :, 3:]` or `x[:, None]` ask for them."""
    places = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in places:
        here = places.index(Ellipsis)
        places[here : here + 1] = [slice(None)] * (x.ndim - len(places) + 1 + places.count(None))
    name, axis = notes.of(x), 0
    dropped: list[int] = []
    new: list[int] = []
    for place in places:
        if place is None:
            new.append(axis + len(new) - len(dropped))
            continue
        start, end = (
            (place.start or 0, LAST if place.stop is None else place.stop)
            if isinstance(place, slice)
            else (place, place + 1 or LAST)
        )
        if (start, end) != (0, LAST):
            name = notes.one("Slice", name, *(notes.integers(each) for each in (start, end, axis)))
        if not isinstance(place, slice):
            dropped.append(axis)
        axis += 1
    name = notes.one("Squeeze", name, notes.integers(*dropped)) if dropped else name
    return notes.one("Unsqueeze", name, notes.integers(*new)) if new else name


def mean(notes: Notes, made: Tensor, x: Tensor, dim: int | Sequence[int]) -> str:
    axes = (dim,) if isinstance(dim, int) else dim
    return notes.one("ReduceMean", notes.of(x), notes.integers(*axes), keepdims=0)


def gather(notes: Notes, made: Tensor, x: Tensor, dim: int, index: Tensor) -> str:
    """The same places of every image and head: columns of its last two dimensions laid side by side."""
    assert dim == -1, "rows of offsets"
    assert all(step == 0 for step in index.stride()[:-2])
    rows, width = x.shape[-2:]
    own = index[(0,) * (index.ndim - 2)]  # (rows, columns)
    places = (own + width * torch.arange(rows)[:, None]).flatten()
    line = notes.one("Reshape", notes.of(x), notes.integers(-1, *x.shape[1:-2], rows * width))
    found = notes.one("Gather", line, notes.constant(places), axis=x.ndim - 2)
    return notes.one("Reshape", found, notes.integers(-1, *made.shape[1:]))


def repeat(notes: Notes, made: Tensor, x: Tensor, count: int, dim: int) -> str:
    assert dim == 0, "each image as often as it has windows"
    apart = notes.one("Unsqueeze", notes.of(x), notes.integers(1))
    copies = notes.one("Expand", apart, notes.integers(1, count, *(1 for _ in x.shape[1:])))
    return notes.one("Reshape", copies, notes.integers(-1, *x.shape[1:]))


def conv2d(notes: Notes, made: Tensor, x: Tensor, weight: Tensor, stride: int) -> str:
    kernel = notes.constant(weight, "weight")
    return notes.one("Conv", notes.of(x), kernel, strides=[stride, stride], kernel_shape=list(weight.shape[2:]))


def max_pool(notes: Notes, made: Tensor, x: Tensor, kernel: int, stride: int, *_: Any, **__: Any) -> str:
    return notes.one("MaxPool", notes.of(x), kernel_shape=[kernel] * 2, strides=[stride] * 2)


def average_pool(
    notes: Notes, made: Tensor, x: Tensor, kernel: int, stride: int, padding: int, count_include_pad: bool
) -> str:
    sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
    return notes.one("AveragePool", notes.of(x), count_include_pad=int(count_include_pad), **sizes)


OPERATORS: dict[Callable[..., Any], Operator] = {
    F.avg_pool2d: average_pool,
    F.conv2d: conv2d,
    F.dropout: same,
    F.gelu: gelu,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.linear: linear,
    F.max_pool2d: max_pool,
    F.pad: pad,
    F.scaled_dot_product_attention: attention,
    F.silu: silu,
    Tensor.__getitem__: take,
    Tensor.add: pairwise("Add"),
    Tensor.chunk: split,
    Tensor.flatten: reshape,
    Tensor.float: number,
    Tensor.gather: gather,
    Tensor.log: single("Log"),
    Tensor.mT.__get__: transpose,  # type: ignore[attr-defined]
    Tensor.matmul: matmul,
    Tensor.mean: mean,
    Tensor.mul: pairwise("Mul"),
    Tensor.permute: permute,
    Tensor.relu: single("Relu"),
    Tensor.repeat_interleave: repeat,
    Tensor.softmax: softmax,
    Tensor.sub: pairwise("Sub"),
    Tensor.tanh: single("Tanh"),
    Tensor.transpose: transpose,
    Tensor.unbind: unbind,
    Tensor.unflatten: reshape,
    torch.cat: cat,
    torch.sigmoid: single("Sigmoid"),
}


def normalize(notes: Notes, made: Tensor, x: Tensor, dim: int, eps: float = 1e-12, **_: Any) -> str:
    length = notes.one("ReduceL2", notes.of(x), notes.integers(dim), keepdims=1)
    return notes.one("Div", notes.of(x), notes.one("Max", length, notes.of(eps)))


def select(notes: Notes, made: Tensor, x: Tensor, dim: int, places: Tensor) -> str:
    return notes.one("Gather", notes.of(x), notes.of(places), axis=dim)


def take_along(notes: Notes, made: Tensor, line: Tensor, places: Tensor) -> str:
    assert line.ndim == 1
    return notes.one("Gather", notes.of(line), notes.of(places), axis=0)


def take_rows(notes: Notes, made: Tensor, x: Tensor, places: Tensor, dim: int) -> str:
    """Whole rows of each image: GatherElements would copy them number by number."""
    assert dim == 1
    assert places.shape[2:] == (1,), "the same places for all numbers of a row"
    return notes.one("GatherND", notes.of(x), notes.of(places), batch_dims=1)


def largest(notes: Notes, made: Tensor, x: Tensor, dim: int) -> str:
    return notes.one("ReduceMax", notes.of(x), notes.integers(dim), keepdims=0)


def place_of_largest(notes: Notes, made: Tensor, x: Tensor, dim: int) -> str:
    return notes.one("ArgMax", notes.of(x), axis=dim, keepdims=0)


def ranked(notes: Notes, made: Sequence[Tensor], x: Tensor, count: int, dim: int, largest: bool = True) -> list[str]:
    return notes.node("TopK", notes.of(x), notes.integers(count), outputs=2, axis=dim, largest=int(largest))


def total(notes: Notes, made: Tensor, x: Tensor, dim: int, keepdim: bool = False) -> str:
    return notes.one("ReduceSum", notes.of(x), notes.integers(dim), keepdims=int(keepdim))


def where(notes: Notes, made: Tensor, condition: Tensor, first: Tensor | float, second: Tensor | float) -> str:
    """A plain number is of the kind of what is made."""
    sides = (each if isinstance(each, Tensor) else torch.tensor(each, dtype=made.dtype) for each in (first, second))
    return notes.one("Where", notes.of(condition), *map(notes.of, sides))


def equal(notes: Notes, made: Tensor, first: Tensor, second: Tensor) -> str:
    return notes.one("Equal", notes.of(first), notes.of(second))


def divide(notes: Notes, made: Tensor, first: Tensor, second: Tensor) -> str:
    return notes.one("Div", notes.of(first), notes.of(second))


def ones(notes: Notes, made: Tensor, like: Tensor) -> str:
    one = numpy_helper.from_array(torch.ones(1).numpy())
    return notes.one("ConstantOfShape", notes.one("Shape", notes.of(like)), value=one)


CHOOSING: dict[Callable[..., Any], Operator] = {
    F.normalize: normalize,
    Tensor.__eq__: equal,
    Tensor.amax: largest,
    Tensor.argmax: place_of_largest,
    Tensor.div: divide,
    Tensor.index_select: select,
    Tensor.sum: total,
    Tensor.take: take_along,
    Tensor.take_along_dim: take_rows,
    Tensor.topk: ranked,
    torch.ones_like: ones,
    torch.where: where,
}
