"""Files of MATLAB, level 5 (`.mat` up to version 7), as datasets publish their labels.

Read here, in the small part that labels need: arrays of real numbers, text, structs and cells, plain or compressed.
Objects, functions, sparse and complex arrays are refused, as are files whose content is larger than it may be. SciPy
would read more, and is a large package for two files of labels.
"""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from vitral.core.errors import DataError

HEAD = 128  # bytes before the first element
MAX_BYTES = 64 * 2**20  # of a compressed element, once it is unpacked
MAX_DEPTH = 16  # structs and cells inside each other
MAX_VALUES = 2**20  # of a struct or a cell
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, STRUCT, CHARACTERS, NUMERIC = 1, 2, 4, range(6, 16)  # classes of arrays
COMPLEX = 0x800


class Element(NamedTuple):
    """A piece of the file: its type and content."""

    type: int
    content: bytes


def read_matlab(data: bytes, where: str) -> dict[str, Any]:
    """The variables by name: numpy arrays, text, lists of dictionaries (structs) and lists (cells)."""
    try:
        return _read(data)
    except (ValueError, LookupError, StopIteration, struct.error, zlib.error) as error:
        message, hint = f"not a readable file of MATLAB (level 5): {error or 'it ends early'}", "download it again"
        raise DataError(message, code="data.bad_archive", where=where, hint=hint) from None


def _read(data: bytes) -> dict[str, Any]:
    mark = data[HEAD - 2 : HEAD]
    if mark not in {b"IM", b"MI"}:
        raise ValueError("it has another header" + ("; version 7.3 is HDF5" if data[1:4] == b"HDF" else ""))
    order = "<" if mark == b"IM" else ">"
    found = {}
    for element in _elements(data[HEAD:], order):
        kind, content = element
        if kind == COMPRESSED:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(content, MAX_BYTES)
            if unpacker.unconsumed_tail:
                raise ValueError(f"unpacks to more than {MAX_BYTES:,} bytes")
            kind, content = next(_elements(content, order))
        if kind == MATRIX:
            name, value = _array(content, order, 0)
            found[name] = value
    return found


def _elements(data: bytes, order: str) -> Iterator[Element]:
    """The elements one after another; those of up to 4 bytes have a short form."""
    at = 0
    while at + 8 <= len(data):
        (kind,) = struct.unpack_from(f"{order}I", data, at)
        if length := kind >> 16:
            if length > 4:
                raise ValueError("a short element of more than 4 bytes")
            yield Element(kind & 0xFFFF, data[at + 4 : at + 4 + length])
            at += 8
            continue
        (length,) = struct.unpack_from(f"{order}I", data, at + 4)
        if at + 8 + length > len(data):
            raise ValueError("it ends early")
        yield Element(kind, data[at + 8 : at + 8 + length])
        at += 8 + length + (-length % 8 if kind != COMPRESSED else 0)


def _array(content: bytes, order: str, depth: int) -> tuple[str, Any]:
    """The name and the value of an array."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} arrays inside each other")
    if not content:
        return "", np.zeros((0, 0))
    parts = _elements(content, order)
    (flags, _) = struct.unpack(f"{order}2I", next(parts).content)
    shape = _numbers(next(parts), order).astype(int).tolist()
    name = next(parts).content.decode("latin-1")
    kind, size = flags & 0xFF, prod(shape)
    if flags & COMPLEX or min(shape) < 0:
        raise ValueError(f"{name or 'a value'} is complex, or has no shape")
    if kind in NUMERIC:
        return name, _shaped(_numbers(next(parts), order), shape)
    if kind == CHARACTERS:
        return name, _text(next(parts, Element(1, b"")), order)
    if kind not in {CELL, STRUCT} or size > MAX_VALUES:
        raise ValueError(f"{name or 'a value'} is an array of {size:,} values of class {kind}, which is not read")
    if kind == CELL:
        return name, [_array(next(parts).content, order, depth + 1)[1] for _ in range(size)]
    length = int(_numbers(next(parts), order)[0])
    names = next(parts).content
    if length < 1:
        raise ValueError(f"{name} has fields without names")
    fields = [names[at : at + length].split(b"\0")[0].decode("latin-1") for at in range(0, len(names), length)]
    if size * len(fields) > MAX_VALUES:
        raise ValueError(f"{name} has more than {MAX_VALUES:,} values")
    rows = [{each: _array(next(parts).content, order, depth + 1)[1] for each in fields} for _ in range(size)]
    return name, rows


def _numbers(element: Element, order: str) -> Any:
    return np.frombuffer(element.content, f"{order}{NUMBERS[element.type]}")


def _shaped(values: Any, shape: list[int]) -> Any:
    """The values in a shape, column by column as MATLAB has them."""
    return values.reshape(shape, order="F")


def _text(element: Element, order: str) -> str:
    encoding = TEXTS[element.type]
    wide = f"{encoding}-{'le' if order == '<' else 'be'}" if encoding in {"utf-16", "utf-32"} else encoding
    return element.content.decode(wide)
