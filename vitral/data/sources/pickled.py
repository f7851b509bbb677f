"""The pickles of CIFAR read as data: nothing in them is run, and what they do not need is refused.

Python 2 wrote them with protocol 2: a dictionary with lists of numbers, lists of strings and one array of bytes. An
array is a call of `_reconstruct` and one of `dtype`, with a state for each; they are known by name and never called.
"""

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from vitral.data.sources.arrays import Array
from vitral.errors import DataError

MARK = object()
FRESH: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "MARK": lambda: MARK,
    "NEWFALSE": lambda: False,
    "NEWTRUE": lambda: True,
    "NONE": lambda: None,
}
LITERALS = {"BININT", "BININT1", "BININT2", "BINSTRING", "LONG1", "SHORT_BINSTRING"}
TO_MARK = 0
TAKES = {  # how many values each of these takes off the stack
    "APPEND": 1,
    "APPENDS": TO_MARK,
    "BUILD": 1,
    "REDUCE": 2,
    "SETITEM": 2,
    "SETITEMS": TO_MARK,
    "TUPLE": TO_MARK,
    "TUPLE1": 1,
    "TUPLE2": 2,
    "TUPLE3": 3,
}


@dataclass(frozen=True)
class Name:
    """Something of numpy's that the file mentions."""

    meaning: str


@dataclass
class Call:
    """What the file would make by calling a name: the dtype of bytes, or an array once its state is set."""

    meaning: str
    array: Array | None = None


NAMES = {
    "numpy dtype": Name("dtype"),
    "numpy ndarray": Name("ndarray"),
    "numpy._core.multiarray _reconstruct": Name("array"),
    "numpy.core.multiarray _reconstruct": Name("array"),  # before numpy 2
}


def read_pickled(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle of CIFAR: numbers, strings, lists and arrays of bytes by name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what text with odd escapes gives rise to; no original has any
            found = _run(data)
    except (ValueError, TypeError, LookupError, Warning) as error:
        raise DataError(
            f"not a pickle as CIFAR has them: {error}",
            code="data.bad_archive",
            where=where,
            remedy="fetch it again, or fetch the binary version of the set, which is no pickle",
        ) from None
    return {name: value.array if isinstance(value, Call) else value for name, value in found.items()}


def _run(data: bytes) -> dict[str, Any]:
    """The only value that the opcodes leave on the stack, which must be a dictionary."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, place in pickletools.genops(data):
        name = opcode.name
        if name in LITERALS:
            stack.append(argument)
        elif name in FRESH:
            stack.append(FRESH[name]())
        elif name in {"BINPUT", "LONG_BINPUT"}:
            memo[argument] = stack[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            stack.append(memo[argument])
        elif name == "GLOBAL" and argument in NAMES:
            stack.append(NAMES[argument])
        elif name in TAKES:
            _apply(name, _taken(stack, TAKES[name]), stack)
        elif name not in {"PROTO", "STOP"}:
            raise ValueError(f"{name} {argument or ''}".strip() + f" at byte {place} is refused")
    if len(stack) != 1:
        raise ValueError(f"expected one value, found {len(stack)}")
    return _last(stack, dict)


def _taken(stack: list[Any], count: int) -> list[Any]:
    """The last so many values, or those after the last mark, which goes with them."""
    start = len(stack) - count
    if count == TO_MARK:
        start = next((place for place in range(len(stack), 0, -1) if stack[place - 1] is MARK), -1)
    if start < 0 or any(value is MARK for value in stack[start:]):
        raise ValueError("a value is missing")
    values = stack[start:]
    del stack[start - (count == TO_MARK) :]
    return values


def _apply(name: str, values: list[Any], stack: list[Any]) -> None:
    match name:
        case "APPEND" | "APPENDS":
            _last(stack, list).extend(values)
        case "SETITEM" | "SETITEMS":
            if not all(isinstance(key, str) for key in values[::2]):
                raise ValueError("a key is not a string")
            _last(stack, dict).update(zip(values[::2], values[1::2], strict=True))
        case "REDUCE":
            stack.append(_called(*values))
        case "BUILD":
            _set_state(_last(stack, Call), *values)
        case _:
            stack.append(tuple(values))


def _last(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise ValueError(f"expected a {kind.__name__.lower()}, found a {type(stack[-1]).__name__.lower()}")
    return stack[-1]


def _called(name: object, arguments: object) -> Call:
    empty_array = (NAMES["numpy ndarray"], (0,), "b")
    if name == Name("array") and arguments == empty_array:
        return Call("array")
    if name == Name("dtype") and isinstance(arguments, tuple) and arguments[:1] == ("u1",):
        return Call("dtype")
    raise ValueError("it calls something that makes no array of bytes")


def _set_state(call: Call, state: Any) -> None:
    if call.meaning == "dtype":
        return  # the order of bytes and the like: one byte has none
    _, shape, dtype, columns_first, values = state
    sound = isinstance(dtype, Call) and dtype.meaning == "dtype" and not columns_first and isinstance(values, str)
    if not sound or min(shape) < 0 or prod(shape) != len(values):
        raise ValueError("an array has another form than rows of bytes")
    call.array = np.frombuffer(values.encode("latin-1"), np.uint8).reshape(shape)
