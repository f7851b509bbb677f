"""Formulas that are written down as ONNX nodes: `(x * 2 + 1).floor()` is three of them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOAT, BYTE, INTEGER, DOUBLE = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT64, TensorProto.DOUBLE
NUMBERS: dict[int, torch.dtype] = {FLOAT: torch.float32, INTEGER: torch.int64, DOUBLE: torch.float64}


@dataclass(frozen=True)
class Sheet:
    """Nodes in their order, and the constants that they use, by names that begin alike."""

    prefix: str
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Write a node, and give the name of what it makes."""
        name = f"{self.prefix}.{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: torch.Tensor) -> "Value":
        """A tensor that is known beforehand."""
        name = f"{self.prefix}.constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value.numpy(), name))
        kind = next(kind for kind, dtype in NUMBERS.items() if dtype == value.dtype)
        return Value(self, name, kind)


@dataclass(frozen=True)
class Value:
    """Something that is known when the model runs. A plain number beside it is of its kind."""

    sheet: Sheet
    name: str
    kind: int  # of its numbers, as ONNX counts them

    def __add__(self, other: "Value | float") -> "Value":
        return self.do("Add", other)

    def __sub__(self, other: "Value | float") -> "Value":
        return self.do("Sub", other)

    def __mul__(self, other: "Value | float") -> "Value":
        return self.do("Mul", other)

    def __truediv__(self, other: "Value | float") -> "Value":
        return self.do("Div", other)

    def __matmul__(self, other: "Value") -> "Value":
        return self.do("MatMul", other)

    def __lt__(self, other: "Value | float") -> "Value":
        return self.do("Less", other)

    def __ge__(self, other: "Value | float") -> "Value":
        return self.do("GreaterOrEqual", other)

    def __and__(self, other: "Value") -> "Value":
        return self.do("And", other)

    def do(self, operator: str, *others: "Value | float", **attributes: Any) -> "Value":
        """What an operator makes of it and others, by ONNX's name for it."""
        names = (self.name, *(self.like(other).name for other in others))
        return Value(self.sheet, self.sheet.node(operator, *names, **attributes), self.kind)

    def like(self, number: "Value | float") -> "Value":
        """A plain number as a value of the same kind."""
        if isinstance(number, Value):
            return number
        return self.sheet.constant(torch.tensor(number, dtype=NUMBERS[self.kind]))

    def floor(self) -> "Value":
        return self.do("Floor")

    def to(self, kind: int) -> "Value":
        return Value(self.sheet, self.sheet.node("Cast", self.name, to=kind), kind)

    def where(self, condition: "Value", other: float) -> "Value":
        """Its own numbers where the condition holds, and another where it does not."""
        return Value(self.sheet, self.sheet.node("Where", condition.name, self.name, self.like(other).name), self.kind)

    def turned(self, *axes: int) -> "Value":
        return self.do("Transpose", perm=list(axes))

    def along(self, operator: str, axis: int) -> "Value":
        """A reduction that keeps the dimension."""
        return Value(
            self.sheet,
            self.sheet.node(operator, self.name, self.sheet.constant(torch.tensor([axis])).name, keepdims=1),
            self.kind,
        )

    def all(self, operator: str) -> "Value":
        """A reduction of everything to one number."""
        return self.do(operator, keepdims=0)

    def side(self, axis: int) -> "Value":
        """How long it is along an axis, one whole number."""
        shape = self.sheet.node("Shape", self.name)
        place = self.sheet.constant(torch.tensor(axis))
        return Value(self.sheet, self.sheet.node("Gather", shape, place.name), INTEGER)

    def counted(self) -> "Value":
        """0, 1, 2 and so on up to it."""
        zero, one = self.like(0), self.like(1)
        return Value(self.sheet, self.sheet.node("Range", zero.name, self.name, one.name), self.kind)
