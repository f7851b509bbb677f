"""Trace a graph into ONNX nodes.

The graph runs once on a small batch under a `TorchFunctionMode`; expensive functions only allocate their output. What
does not depend on the pixels is computed on the way and becomes a constant. The batch is the first dimension of every
tensor and no node contains it, so the model takes any batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from onnx import NodeProto, helper
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from vitral.core.errors import ConfigError

Value = Tensor | float
Operator = Callable[..., str | list[str]]  # adds nodes and returns the names of their outputs


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
        return self.constant(unexpand(value) if isinstance(value, Tensor) else torch.tensor(float(value)))

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

    def nodes_with_outputs(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        name = f"{self.module_name()}.{kind}_{len(self.nodes)}"
        names = [f"{name}_{index}" for index in range(outputs)] if outputs > 1 else [name]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
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
                node.output[:] = [name if each == last else each for each in node.output]
                node.input[:] = [name if each == last else each for each in node.input]
        self.nodes = kept[::-1]
        self.constants = {each: value for each, value in self.constants.items() if each in needed}


def unexpand(tensor: Tensor) -> Tensor:
    """A constant before `expand` repeated it for the batch: ONNX broadcasts it."""
    return tensor[:1] if tensor.ndim and not tensor.stride(0) else tensor


class OnnxTracer(TorchFunctionMode):
    """Inside the `with`, adds nodes for each function of a bound tensor, by the table `operators`."""

    def __init__(self, builder: OnnxBuilder, operators: dict[Callable[..., Any], Operator]) -> None:
        super().__init__()
        self.builder, self.operators = builder, operators

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        depends = any(map(self.builder.is_bound, flatten((*args, *keywords.values()))))
        run: Callable[..., Any] = SHAPE_ONLY.get(func, func) if depends else func
        result = run(*args, **keywords)
        tensors = [each for each in flatten(result) if isinstance(each, Tensor)]
        if not depends or not tensors or 0 in tensors[0].shape[1:]:
            return result  # a constant, a shape or dtype, or an empty tensor
        if func not in self.operators:
            message = f"{self.builder.module_name()} uses {resolve_name(func) or func}, which has no ONNX translation"
            raise ConfigError(message, code="config.unsupported", where="model", hint="use engine=eager, or --to torch")
        names = self.operators[func](self.builder, result, *args, **keywords)
        for tensor, name in zip(tensors, [names] if isinstance(names, str) else names, strict=True):
            self.builder.bind(tensor, name)
        return result


# Expensive functions whose values are not needed: these allocate a tensor of the right shape.
SHAPE_ONLY: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.gelu: lambda x, *_, **__: torch.empty_like(x),
    F.layer_norm: lambda x, *_, **__: torch.empty_like(x),
    F.linear: lambda x, weight, *_: x.new_empty(*x.shape[:-1], len(weight)),
    F.scaled_dot_product_attention: lambda q, k, v, **_: q.new_empty(*q.shape[:-1], v.shape[-1]),
}


def flatten(values: object) -> Iterator[object]:
    """The leaves of nested lists and tuples."""
    if not isinstance(values, tuple | list):
        yield values
        return
    for value in values:
        yield from flatten(value)


@contextmanager
def track_module_names(module: nn.Module) -> Iterator[Callable[[], str]]:
    """A function that returns, inside the `with`, the name of the innermost module that is running."""
    running = [""]

    def enter(name: str) -> Callable[..., None]:
        return lambda part, inputs: running.append(name)

    def leave(*_: object) -> None:
        running.pop()

    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.enter_context(part.register_forward_pre_hook(enter(name)))
            hooks.enter_context(part.register_forward_hook(leave))
        yield lambda: running[-1]
