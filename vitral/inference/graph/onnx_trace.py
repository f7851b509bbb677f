"""What a graph does to its pixels, written down as ONNX nodes.

The graph runs once for its shapes, the large products left out. What does not depend on the pixels is worked out on the
way and becomes a constant: tables of places, indices, folded weights. The batch is in the first dimension of every
tensor and is never written down, so any batch will do.
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
Operator = Callable[..., str | list[str]]  # writes nodes, and gives the names of what they make


class Notes:
    """Nodes in their order, and the constants that they use."""

    def __init__(self, part: Callable[[], str]) -> None:
        self.part = part  # tells whose work is being written down
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Tensor] = {}  # as they lie in the graph: nothing is copied before it is written
        self._names: dict[int, str] = {}  # of tensors, by id
        self._alive: list[Tensor] = []  # an id means a tensor only as long as it lives
        self._reshaped: dict[str, str] = {}  # what was made by a Reshape, and of what

    def name(self, tensor: Tensor, name: str) -> None:
        """Call a tensor that depends on the pixels by a name."""
        self._names[id(tensor)] = name
        self._alive.append(tensor)

    def knows(self, value: object) -> bool:
        """Whether this is a tensor that depends on the pixels."""
        return id(value) in self._names

    def of(self, value: Value) -> str:
        """The name of a tensor that depends on the pixels, or of a constant that is written down now."""
        if self.knows(value):
            return self._names[id(value)]
        return self.constant(unexpanded(value) if isinstance(value, Tensor) else torch.tensor(float(value)))

    def constant(self, value: Tensor, kind: str = "constant") -> str:
        name = f"{self.part()}.{kind}"
        if name in self.constants:
            name += f"_{len(self.constants)}"
        self.constants[name] = value.detach()
        return name

    def integers(self, *values: int) -> str:
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def node(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Write a node that makes several things."""
        name = f"{self.part()}.{kind}_{len(self.nodes)}"
        made = [f"{name}_{place}" for place in range(outputs)] if outputs > 1 else [name]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Write a node that makes one thing."""
        return self.node(kind, *inputs, outputs=1, **attributes)[0]

    def reshaped(self, x: Tensor, shape: Sequence[int]) -> str:
        """Write the same numbers in another shape, whose first side is left open. Of several in a row one is enough."""
        source = self._reshaped.get(self.of(x), self.of(x))
        name = self.one("Reshape", source, self.integers(-1, *shape[1:]))
        self._reshaped[name] = source
        return name

    def finish(self, answer: Tensor, name: str) -> None:
        """Call what comes out by a name, and drop what nobody uses."""
        last = self.of(answer)
        needed, kept = {last}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
                node.output[:] = [name if each == last else each for each in node.output]
                node.input[:] = [name if each == last else each for each in node.input]
        self.nodes = kept[::-1]
        self.constants = {each: value for each, value in self.constants.items() if each in needed}


def unexpanded(tensor: Tensor) -> Tensor:
    """A constant as it was before `expand` repeated it for a batch: ONNX repeats it by itself."""
    return tensor[:1] if tensor.ndim and not tensor.stride(0) else tensor


class Trace(TorchFunctionMode):
    """Inside the `with`, what is done to tensors that have names is written down, as `operators` tells by function."""

    def __init__(self, notes: Notes, operators: dict[Callable[..., Any], Operator]) -> None:
        super().__init__()
        self.notes, self.operators = notes, operators

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        words = kwargs or {}
        depends = any(map(self.notes.knows, leaves((*args, *words.values()))))
        run: Callable[..., Any] = HOLLOW.get(func, func) if depends else func
        found = run(*args, **words)
        made = [each for each in leaves(found) if isinstance(each, Tensor)]
        if not depends or not made or 0 in made[0].shape[1:]:
            return found  # a constant; a shape or a type; or a tensor of no tokens, which nobody need make
        if func not in self.operators:
            message = f"{self.notes.part()} uses {resolve_name(func) or func}, which is not written in ONNX"
            raise ConfigError(message, code="config.unsupported", where="model", hint="use engine=eager, or --to torch")
        names = self.operators[func](self.notes, found, *args, **words)
        for tensor, name in zip(made, [names] if isinstance(names, str) else names, strict=True):
            self.notes.name(tensor, name)
        return found


def hollow_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def hollow_attention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def hollow_same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x)


# What takes long and whose values nobody needs: a tensor of the right shape will do.
HOLLOW: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.gelu: hollow_same,
    F.layer_norm: hollow_same,
    F.linear: hollow_linear,
    F.scaled_dot_product_attention: hollow_attention,
}


def leaves(values: object) -> Iterator[object]:
    """Everything in lists and tuples, however deep."""
    if not isinstance(values, tuple | list):
        yield values
        return
    for value in values:
        yield from leaves(value)


@contextmanager
def parts_told(module: nn.Module) -> Iterator[Callable[[], str]]:
    """A function that names, inside the `with`, the innermost part of the module that is at work."""
    at_work = [""]

    def enter(name: str) -> Callable[..., None]:
        return lambda part, inputs: at_work.append(name)

    def leave(*_: object) -> None:
        at_work.pop()

    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.enter_context(part.register_forward_pre_hook(enter(name)))
            hooks.enter_context(part.register_forward_hook(leave))
        yield lambda: at_work[-1]
