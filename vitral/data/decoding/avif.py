"""The real size of AVIF images: that of the AV1 stream inside, for which the decoder allocates memory.

The container is a tree of boxes (ISO/IEC 14496-12 and 23008-12), and its declared size may be another. The real one
stands in the sequence header of AV1 (section 5.5 of its specification).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from vitral.core.config import Size

MAX_BOXES = 10_000
MAX_ITEMS = 1_000  # tiles of a grid, and their alpha
SEQUENCE_HEADER = 1  # the type of its OBU
MAX_OBUS = 8  # that stand before the sequence header of an item


class Box(NamedTuple):
    """A box: its type, and where its content is."""

    kind: bytes
    start: int
    end: int


class AvifSizes(NamedTuple):
    """The sizes that the header declares, and those of the AV1 streams."""

    declared: list[Size]
    coded: list[Size]


def read_sizes(data: bytes) -> AvifSizes:
    """The sizes in a file; ValueError where its boxes are damaged or too many."""
    try:
        return _read_sizes(data)
    except (struct.error, IndexError) as error:
        raise ValueError("damaged boxes") from error


def _read_sizes(data: bytes) -> AvifSizes:
    meta = next((box for box in _boxes(data, 0, len(data)) if box.kind == b"meta"), None)
    if meta is None:
        return AvifSizes([], [])
    declared: list[Size] = []
    coded: list[Size] = []
    for box in _boxes(data, meta.start + 4, meta.end):  # after version and flags
        if box.kind == b"iprp":
            for inner in _boxes(data, box.start, box.end):
                if inner.kind == b"ipco":
                    declared += [
                        _declared(data, item) for item in _boxes(data, inner.start, inner.end) if item.kind == b"ispe"
                    ]
        elif box.kind == b"iloc":
            sizes = (_coded(data, start, end) for start, end in _locations(data, box))
            coded += [size for size in sizes if size]
    return AvifSizes(declared, coded)


def is_deep(data: bytes) -> bool:
    """Whether an image in a file has more than 8 bits per sample, by the configuration (`av1C`) of its stream."""
    place = data.find(b"av1C")
    return place >= 0 and bool(data[place + 6 : place + 7] and data[place + 6] & 0x40)


def _boxes(data: bytes, place: int, end: int) -> Iterator[Box]:
    for _ in range(MAX_BOXES):
        if place + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, place)
        start = place + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        stop = end if size == 0 else place + size
        if not start <= stop <= end:
            raise ValueError(f"a box {kind!r} of {size} bytes, which is not there")
        yield Box(kind, start, stop)
        place = stop
    raise ValueError(f"more than {MAX_BOXES:,} boxes")


def _declared(data: bytes, box: Box) -> Size:
    width, height = struct.unpack_from(">4xII", data, box.start)
    return Size(height, width)


def _locations(data: bytes, box: Box) -> Iterator[tuple[int, int]]:
    """Where each item of the file itself begins, and where its first extent ends."""
    version, sizes, more = data[box.start], data[box.start + 4], data[box.start + 5]
    offset_size, length_size, base_size = sizes >> 4, sizes & 15, more >> 4
    index_size = more & 15 if version else 0
    count_format = ">H" if version < 2 else ">I"
    (count,) = struct.unpack_from(count_format, data, box.start + 6)
    if count > MAX_ITEMS:
        raise ValueError(f"{count:,} items")
    place = box.start + 6 + struct.calcsize(count_format)
    for _ in range(count):
        place += 2 if version < 2 else 4  # the item's number
        construction = struct.unpack_from(">H", data, place)[0] & 15 if version else 0
        place += (2 if version else 0) + 2  # and the data reference
        base = int.from_bytes(data[place : place + base_size], "big")
        (extents,) = struct.unpack_from(">H", data, place + base_size)
        place += base_size + 2
        first = place + index_size
        start = base + int.from_bytes(data[first : first + offset_size], "big")
        length = int.from_bytes(data[first + offset_size : first + offset_size + length_size], "big")
        if extents and construction == 0 and start < len(data):
            yield start, min(start + length, len(data)) if length else len(data)
        place += extents * (index_size + offset_size + length_size)


def _coded(data: bytes, place: int, end: int) -> Size | None:
    """The largest size of a frame, from the sequence header of an AV1 stream; None of an item that is none."""
    for _ in range(MAX_OBUS):
        if place + 2 > end:
            return None
        header = data[place]
        kind, extended, sized = header >> 3 & 15, header >> 2 & 1, header >> 1 & 1
        if header & 0x81 or not sized:  # bits that are 0 in AV1: this is metadata
            return None
        size, place = _leb128(data, place + 1 + extended)
        if kind == SEQUENCE_HEADER:
            return _frame_size(data[place : min(place + size, end)])
        place += size
    return None


def _leb128(data: bytes, place: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and the place after it."""
    value = 0
    for count in range(8):
        byte = data[place + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, place + count + 1
    raise ValueError("a number without end")


class _Bits:
    """Reads numbers of any number of bits, the highest first."""

    def __init__(self, data: bytes) -> None:
        self.value, self.left = int.from_bytes(data, "big"), 8 * len(data)

    def read(self, count: int = 1) -> int:
        self.left -= count
        if self.left < 0:
            raise ValueError("a sequence header that is cut off")
        return self.value >> self.left & (1 << count) - 1


def _frame_size(header: bytes) -> Size:
    bits = _Bits(header[:256])
    bits.read(4)  # profile, still picture
    if bits.read():  # the reduced header of a still picture
        bits.read(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.read(4) + 1, bits.read(4) + 1
    width = bits.read(width_bits) + 1
    return Size(bits.read(height_bits) + 1, width)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.read():  # timing information
        bits.read(64)
        if bits.read():
            zeros = 0
            while not bits.read():
                zeros += 1
            bits.read(zeros)
        if bits.read():  # a decoder model
            delay_bits = bits.read(5) + 1
            bits.read(42)
    displays = bits.read()
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:
            bits.read()
        if delay_bits and bits.read():
            bits.read(2 * delay_bits + 1)
        if displays and bits.read():
            bits.read(4)
