"""ONNX translations of the torch functions that graphs use.  B images.

Each is called with the builder, torch's result, and the arguments of the torch function.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import NodeProto, helper, numpy_helper
from torch import Tensor

Value = Tensor | float
Operator = Callable[..., str | list[str]]  # adds nodes and returns the names of their outputs
LAST = 2**63 - 1  # an open end of a Slice
ONE = numpy_helper.from_array(np.ones(1, dtype=np.float32))


class OnnxBuilder:
    """Nodes in order, and the constants that they use."""

    def __init__(self, module_name: Callable[[], str]) -> None:
        self.module_name = module_name  # of the module that is running
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Tensor] = {}  # the graph's own tensors, not copies
        self._names: dict[int, str] = {}  # by the id of a tensor
        self._alive: list[Tensor] = []  # keeps those ids valid
        self._reshaped: dict[str, str] = {}  # output of a Reshape -> its input

    def bind(self, tensor: Tensor, name: str) -> None:
        """Name a tensor that depends on the pixels."""
        self._names[id(tensor)] = name
        self._alive.append(tensor)

    def is_bound(self, value: object) -> bool:
        """Whether this is a tensor that depends on the pixels."""
        return id(value) in self._names

    def name(self, value: Value) -> str:
        """The name of a bound tensor, or of a new constant."""
        if self.is_bound(value):
            return self._names[id(value)]
        if not isinstance(value, Tensor):
            return self.constant(torch.tensor(float(value)))
        expanded = value.ndim and not value.stride(0)  # for the batch: ONNX broadcasts
        return self.constant(value[:1] if expanded else value)

    def constant(self, value: Tensor, kind: str = "constant") -> str:
        """Add a constant."""
        name = f"{self.module_name()}.{kind}"
        if name in self.constants:
            name += f"_{len(self.constants)}"
        self.constants[name] = value.detach()
        return name

    def ints(self, *values: int) -> str:
        """Add a constant int64 vector."""
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def nodes_with_outputs(self, kind: str, *inputs: str | Value, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs. Inputs are names, tensors or numbers."""
        sources = [each if isinstance(each, str) else self.name(each) for each in inputs]
        name = f"{self.module_name()}.{kind}_{len(self.nodes)}"
        names = [f"{name}_{index}" for index in range(outputs)] if outputs > 1 else [name]
        self.nodes.append(helper.make_node(kind, sources, names, name=name, **attributes))
        return names

    def node(self, kind: str, *inputs: str | Value, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.nodes_with_outputs(kind, *inputs, outputs=1, **attributes)[0]

    def reshape(self, x: Tensor, shape: Sequence[int]) -> str:
        """Add a Reshape to a shape whose first side is open. Consecutive reshapes become one."""
        source = self._reshaped.get(self.name(x), self.name(x))
        name = self.node("Reshape", source, self.ints(-1, *shape[1:]))
        self._reshaped[name] = source
        return name

    def finish(self, output: Tensor, name: str) -> None:
        """Name the output, and drop unused nodes and constants."""
        last = self.name(output)
        needed, kept = {last}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
                for names in (node.output, node.input):
                    names[:] = [name if each == last else each for each in names]
        self.nodes = kept[::-1]
        self.constants = {each: value for each, value in self.constants.items() if each in needed}


def elementwise(kind: str) -> Operator:
    """The translation of a function whose arguments are the inputs of a node."""
    return lambda g, result, *inputs: g.node(kind, *inputs)


def reshape(g: OnnxBuilder, result: Tensor, x: Tensor, *_: Any, **__: Any) -> str:
    return g.reshape(x, result.shape)


def permute(g: OnnxBuilder, result: Tensor, x: Tensor, *axes: Any) -> str:
    return g.node("Transpose", x, perm=list(axes[0] if isinstance(axes[0], tuple) else axes))


def transpose(g: OnnxBuilder, result: Tensor, x: Tensor, first: int = -2, second: int = -1) -> str:
    axes = list(range(x.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return g.node("Transpose", x, perm=axes)


def linear(g: OnnxBuilder, result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    product = g.node("MatMul", x, g.constant(weight.mT, "weight"))
    return product if bias is None else g.node("Add", product, g.constant(bias, "bias"))


def layer_norm(
    g: OnnxBuilder, result: Tensor, x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> str:
    factor = torch.ones(*shape) if weight is None else weight  # ONNX requires a weight
    shift = () if bias is None else (bias,)
    return g.node("LayerNormalization", x, factor, *shift, axis=-1, epsilon=eps)


def rms_norm(g: OnnxBuilder, result: Tensor, x: Tensor, shape: Sequence[int], weight: Tensor, eps: float) -> str:
    """In basic operations: RMSNormalization came with a later opset."""
    square = g.node("ReduceMean", g.node("Mul", x, x), g.ints(-1), keepdims=1)
    return g.node("Mul", g.node("Div", x, g.node("Sqrt", g.node("Add", square, eps))), weight)


def group_norm(g: OnnxBuilder, result: Tensor, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> str:
    """As InstanceNormalization of the groups, which all engines support; few support GroupNormalization."""
    shape = x.shape[1:]
    rows = g.node("Reshape", x, g.ints(-1, groups, math.prod(shape) // groups))
    normed = g.node("InstanceNormalization", rows, torch.ones(groups), torch.zeros(groups), epsilon=eps)
    back = g.node("Reshape", normed, g.ints(-1, *shape))
    return g.node("Add", g.node("Mul", back, weight[:, None, None]), bias[:, None, None])


def attention(
    g: OnnxBuilder, result: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **how: Any
) -> str:
    scale = how.get("scale") or q.shape[-1] ** -0.5
    queries = q if scale == 1.0 else g.node("Mul", q, scale)
    logits = g.node("MatMul", queries, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    if how.get("is_causal"):  # the first queries see the first keys, up to their own place
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        attn_mask = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
    biased = logits if attn_mask is None else g.node("Add", logits, attn_mask)
    return g.node("MatMul", g.node("Softmax", biased, axis=-1), v)


def pad(g: OnnxBuilder, result: Tensor, x: Tensor, sizes: Sequence[int], mode: str, value: float | None) -> str:
    if not any(sizes):
        return g.name(x)
    pairs = [(0, 0)] * (x.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
    befores, afters = zip(*pairs, strict=True)
    return g.node("Pad", x, g.ints(*befores, *afters), value or 0.0)


def cat(g: OnnxBuilder, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> str:
    assert dim, "no concatenation along the batch"
    full = [g.name(tensor) for tensor in tensors if 0 not in tensor.shape[1:]]
    return g.node("Concat", *full, axis=dim) if len(full) > 1 else full[0]


def stack(g: OnnxBuilder, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> str:
    axis = dim % result.ndim
    assert axis, "no stacking along the batch"
    return g.node("Concat", *(g.node("Unsqueeze", each, g.ints(axis)) for each in tensors), axis=axis)


def split(g: OnnxBuilder, result: Sequence[Tensor], x: Tensor, *_: Any, dim: int = 0) -> list[str]:
    sizes = g.ints(*(part.shape[dim] for part in result))
    return g.nodes_with_outputs("Split", x, sizes, outputs=len(result), axis=dim)


def unbind(g: OnnxBuilder, result: Sequence[Tensor], x: Tensor, dim: int) -> list[str]:
    axis = dim % x.ndim
    slices = g.nodes_with_outputs("Split", x, outputs=len(result), axis=axis, num_outputs=len(result))
    return [g.node("Squeeze", each, g.ints(axis)) for each in slices]


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
        if not isinstance(item, slice):
            dropped.append(axis)
            item = slice(item, item + 1 or None)  # noqa: PLW2901
        start, end = item.start or 0, LAST if item.stop is None else item.stop
        if (start, end) != (0, LAST):
            name = g.node("Slice", name, *(g.ints(each) for each in (start, end, axis)))
        axis += 1
    name = g.node("Squeeze", name, g.ints(*dropped)) if dropped else name
    return g.node("Unsqueeze", name, g.ints(*new)) if new else name


def mean(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int | Sequence[int]) -> str:
    axes = (dim,) if isinstance(dim, int) else dim
    return g.node("ReduceMean", x, g.ints(*axes), keepdims=0)


def gather(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int, index: Tensor) -> str:
    """The same indices for every image and head, as one Gather over the flattened last two dimensions."""
    assert dim == -1
    assert all(step == 0 for step in index.stride()[:-2])
    rows, width = x.shape[-2:]
    first = index[(0,) * (index.ndim - 2)]  # (rows, columns)
    indices = (first + width * torch.arange(rows)[:, None]).flatten()
    flat = g.node("Reshape", x, g.ints(-1, *x.shape[1:-2], rows * width))
    gathered = g.node("Gather", flat, indices, axis=x.ndim - 2)
    return g.node("Reshape", gathered, g.ints(-1, *result.shape[1:]))


def repeat_interleave(g: OnnxBuilder, result: Tensor, x: Tensor, count: int, dim: int) -> str:
    assert dim == 0, "each image once for every window"
    expanded = g.node("Unsqueeze", x, g.ints(1))
    copies = g.node("Expand", expanded, g.ints(1, count, *(1 for _ in x.shape[1:])))
    return g.node("Reshape", copies, g.ints(-1, *x.shape[1:]))


def conv2d(
    g: OnnxBuilder,
    result: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    *options: Any,
) -> str:
    assert options in {(), ((0, 0), (1, 1), 1)}, "no padding, dilation or groups"
    steps = (stride, stride) if isinstance(stride, int) else stride
    kernel, shift = g.constant(weight, "weight"), () if bias is None else (g.constant(bias, "bias"),)
    return g.node("Conv", x, kernel, *shift, strides=list(steps), kernel_shape=list(weight.shape[2:]))


def max_pool2d(g: OnnxBuilder, result: Tensor, x: Tensor, kernel: int, stride: int, *_: Any, **__: Any) -> str:
    return g.node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2)


def avg_pool2d(
    g: OnnxBuilder, result: Tensor, x: Tensor, kernel: int, stride: int, padding: int, count_include_pad: bool
) -> str:
    sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
    return g.node("AveragePool", x, count_include_pad=int(count_include_pad), **sizes)


def normalize(g: OnnxBuilder, result: Tensor, x: Tensor, dim: int, eps: float = 1e-12, **_: Any) -> str:
    return g.node("Div", x, g.node("Max", g.node("ReduceL2", x, g.ints(dim), keepdims=1), eps))


def take_along_dim(g: OnnxBuilder, result: Tensor, x: Tensor, index: Tensor, dim: int) -> str:
    """Whole rows of each image: GatherElements would copy element by element."""
    assert dim == 1
    assert index.shape[2:] == (1,), "one index a row"
    return g.node("GatherND", x, index, batch_dims=1)


def topk(g: OnnxBuilder, result: Sequence[Tensor], x: Tensor, count: int, dim: int, largest: bool = True) -> list[str]:
    return g.nodes_with_outputs("TopK", x, g.ints(count), outputs=2, axis=dim, largest=int(largest))


def where(g: OnnxBuilder, result: Tensor, condition: Tensor, *branches: Tensor | float) -> str:
    """A plain number gets the dtype of the result."""
    typed = (each if isinstance(each, Tensor) else torch.tensor(each, dtype=result.dtype) for each in branches)
    return g.node("Where", condition, *typed)


OPERATORS: dict[Callable[..., Any], Operator] = {
    F.avg_pool2d: avg_pool2d,
    F.conv2d: conv2d,
    F.dropout: lambda g, result, x, *_, **__: g.name(x),
    F.gelu: lambda g, result, x, approximate="none": g.node("Gelu", x, approximate=approximate),
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.linear: linear,
    F.max_pool2d: max_pool2d,
    F.normalize: normalize,
    F.pad: pad,
    F.scaled_dot_product_attention: attention,
    F.embedding: lambda g, result, x, weight, *_, **__: g.node("Gather", g.constant(weight, "weight"), x, axis=0),
    F.elu: lambda g, result, x, alpha=1.0, inplace=False: g.node("Elu", x, alpha=alpha),
    F.hardswish: lambda g, result, x, inplace=False: g.node("HardSwish", x),
    F.leaky_relu: lambda g, result, x, slope=0.01, inplace=False: g.node("LeakyRelu", x, alpha=slope),
    F.mish: lambda g, result, x, inplace=False: g.node("Mish", x),
    F.relu: lambda g, result, x, inplace=False: g.node("Relu", x),
    F.relu6: lambda g, result, x, inplace=False: g.node("Clip", x, 0.0, 6.0),
    F.rms_norm: rms_norm,
    F.selu: lambda g, result, x, inplace=False: g.node("Selu", x),
    F.silu: lambda g, result, x, inplace=False: g.node("Mul", x, g.node("Sigmoid", x)),
    Tensor.__eq__: elementwise("Equal"),
    Tensor.__getitem__: getitem,
    Tensor.add: elementwise("Add"),
    Tensor.amax: lambda g, result, x, dim: g.node("ReduceMax", x, g.ints(dim), keepdims=0),
    Tensor.argmax: lambda g, result, x, dim: g.node("ArgMax", x, axis=dim, keepdims=0),
    Tensor.argmin: lambda g, result, x, dim: g.node("ArgMin", x, axis=dim, keepdims=0),
    Tensor.chunk: split,
    Tensor.div: elementwise("Div"),
    Tensor.flatten: reshape,
    Tensor.float: lambda g, result, x: g.name(x) if x.dtype == torch.float32 else g.node("Cast", x, to=1),
    Tensor.gather: gather,
    Tensor.index_select: lambda g, result, x, dim, index: g.node("Gather", x, index, axis=dim),
    Tensor.log: elementwise("Log"),
    Tensor.mT.__get__: transpose,  # type: ignore[attr-defined]
    Tensor.matmul: elementwise("MatMul"),
    Tensor.mean: mean,
    Tensor.mul: elementwise("Mul"),
    Tensor.permute: permute,
    Tensor.relu: elementwise("Relu"),
    Tensor.repeat_interleave: repeat_interleave,
    Tensor.softmax: lambda g, result, x, dim: g.node("Softmax", x, axis=dim),
    Tensor.sub: elementwise("Sub"),
    Tensor.sum: lambda g, result, x, dim, keepdim=False: g.node("ReduceSum", x, g.ints(dim), keepdims=int(keepdim)),
    Tensor.take: lambda g, result, x, index: g.node("Gather", x, index, axis=0),  # of a vector
    Tensor.take_along_dim: take_along_dim,
    Tensor.tanh: elementwise("Tanh"),
    Tensor.topk: topk,
    Tensor.transpose: transpose,
    Tensor.unbind: unbind,
    Tensor.unflatten: reshape,
    torch.cat: cat,
    torch.stack: stack,
    torch.tanh: elementwise("Tanh"),
    torch.ones_like: lambda g, result, x: g.node("ConstantOfShape", g.node("Shape", x), value=ONE),
    torch.sigmoid: elementwise("Sigmoid"),
    torch.where: where,
}
