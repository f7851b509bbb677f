"""How torch's functions that compare and choose are written in ONNX: those that merging uses.  B images.

As in `operators`: each is called with the notes, what torch made, and the arguments that torch was given.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor

from vitral.deploy.tracing import Notes, Operator


def normalize(notes: Notes, made: Tensor, x: Tensor, dim: int, eps: float = 1e-12, **_: Any) -> str:
    length = notes.one("ReduceL2", notes.of(x), notes.integers(dim), keepdims=1)
    return notes.one("Div", notes.of(x), notes.one("Max", length, notes.of(eps)))


def select(notes: Notes, made: Tensor, x: Tensor, dim: int, places: Tensor) -> str:
    return notes.one("Gather", notes.of(x), notes.of(places), axis=dim)


def take(notes: Notes, made: Tensor, line: Tensor, places: Tensor) -> str:
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
    Tensor.take: take,
    Tensor.take_along_dim: take_rows,
    Tensor.topk: ranked,
    torch.ones_like: ones,
    torch.where: where,
}
