"""Arrays of numpy in a .npz file: a zip of .npy files, memory-mapped where they are uncompressed.

No code in a file is run and no header is trusted: what a member claims to hold is compared with the bytes that are
there before they are read.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import prod
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from zipfile import ZIP64_LIMIT, ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.core.files import open_file
from vitral.core.storage import wrap_read_errors
from vitral.weights.tensors import CHUNK_BYTES

ENDING = ".npy"
LOCAL = struct.Struct("<4s22xHH")  # the header of a member: a mark, ..., the length of its name and of extra fields
EXTRA = struct.Struct("<HH")  # before an extra field: its kind, its length
PADDING = 0xD935  # the kind of extra field that aligns what follows it
ALIGNMENT = 64
LONG_EXTRA = 20  # bytes of the field that zipfile adds to a member of 2 GB and more
PIECE = 2**20  # bytes that are unpacked at a time
MAX_MEMBERS = 20_000
LONGEST_HEADER = 2**14  # of an array; numpy itself accepts 10,000
UNPACKED, RATIO = 2**26, 20  # limits of unpacked bytes: in any file, and relative to the bytes of the file
DOWNLOAD_AGAIN = "copy or download it again"
REPACK = "rewrite it: numpy.savez(FILE, **arrays), with arrays of numbers alone"


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays by name; changing them does not change the file. WeightsError names the wrong member.

    An array that is not aligned is copied: torch may not compute on it.
    """
    with wrap_read_errors(path), _damage(path), open_file(path) as file, ZipFile(file) as archive:
        whole = mmap(file.fileno(), 0, access=ACCESS_COPY)
        starts = _starts(path, archive, whole)
        found = {}
        for info in archive.infolist():
            name, start = info.filename.removesuffix(ENDING), starts[info.filename]
            with _naming(path, name):
                if info.compress_type == ZIP_STORED:
                    found[name] = _tensor(whole, start, info.file_size)
                else:
                    found[name] = _tensor(_unpack(archive, info), 0, info.file_size)
        return found


def write_npz(tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """The bytes of an uncompressed .npz file, independent of the order of the names and of the date."""
    sink = _Sink()
    with ZipFile(sink, "w") as archive:
        for name in sorted(tensors):
            header, data = _array(tensors[name])
            info = ZipInfo(name + ENDING)  # dated 1980 by default
            info.create_system, info.file_size = 3, len(header) + len(data)
            long = info.file_size * 1.05 > ZIP64_LIMIT  # as zipfile has it
            before = sink.tell() + LOCAL.size + len(info.filename.encode()) + long * LONG_EXTRA + EXTRA.size
            gap = -(before + len(header)) % ALIGNMENT
            info.extra = EXTRA.pack(PADDING, gap) + bytes(gap)
            with archive.open(info, "w") as member:
                member.write(header)
                for start in range(0, len(data), CHUNK_BYTES):
                    member.write(data[start : start + CHUNK_BYTES])
                    yield from sink.drained()
    yield from sink.drained()


class _Sink:
    """A file for zipfile that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.length = 0

    def write(self, data: bytes | memoryview) -> int:
        self.pieces.append(memoryview(data))
        self.length += len(data)
        return len(data)

    def tell(self) -> int:
        return self.length

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def drained(self) -> Iterable[memoryview]:
        """What was written since the last call."""
        pieces, self.pieces = self.pieces, []
        return pieces


def _array(tensor: Tensor) -> tuple[bytes, memoryview]:
    """A tensor as the header and the bytes of a .npy file; numpy has no bfloat16, and keeps it as two bytes."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.view(-1).view(torch.uint8).numpy().data
    descr = "|V2" if tensor.dtype == torch.bfloat16 else npy.dtype_to_descr(plain.numpy().dtype)
    text = BytesIO()
    npy.write_array_header_1_0(text, {"descr": descr, "fortran_order": False, "shape": tuple(tensor.shape)})
    return text.getvalue(), data


def _starts(path: Path, archive: ZipFile, whole: mmap) -> dict[str, int]:
    """Where the bytes of each member begin, after checking that they are its own and not too many."""
    members = sorted(archive.infolist(), key=lambda info: info.header_offset)
    if len(members) > MAX_MEMBERS:
        message = f"{len(members):,} members, the limit is {MAX_MEMBERS:,}"
        raise WeightsError(message, code="weights.too_large", where=path, hint="write fewer arrays to a file")
    ends = [*(info.header_offset for info in members[1:]), archive.start_dir]
    starts: dict[str, int] = {}
    for info, end in zip(members, ends, strict=True):
        name = info.filename.removesuffix(ENDING)
        if fault := _fault(info):
            raise WeightsError(f"{name} {fault}", code="weights.bad_archive", where=path, hint=REPACK)
        if info.filename in starts:
            message = f"{name} occurs twice"
            raise WeightsError(message, code="weights.duplicate_tensor", where=path, hint=REPACK)
        starts[info.filename] = start = _start(info, end, whole)
        if not 0 <= start <= end - info.compress_size:
            message = f"{name} overlaps the data after it: there is no room for its {info.compress_size:,} bytes"
            raise WeightsError(message, code="weights.corrupt", where=path, hint=DOWNLOAD_AGAIN)
    unpacked = sum(info.file_size for info in members if info.compress_type != ZIP_STORED)
    if unpacked > max(UNPACKED, RATIO * len(whole)):
        first = max(members, key=lambda info: info.file_size).filename.removesuffix(ENDING)
        message = f"unpacks to {unpacked:,} bytes, more than {RATIO} times the file, most of it {first}"
        hint = "if that is right, write it uncompressed: numpy.savez"
        raise WeightsError(message, code="weights.too_large", where=path, hint=hint)
    return starts


def _unpack(archive: ZipFile, info: ZipInfo) -> bytearray:
    """A compressed member. It is read in pieces: at once, zipfile would unpack more than the member claims to hold."""
    content = bytearray(info.file_size)
    with memoryview(content) as view, archive.open(info) as member:
        place = 0
        while place < len(view) and (piece := member.read(min(PIECE, len(view) - place))):
            view[place : place + len(piece)] = piece
            place += len(piece)
    if place < len(content):
        raise EOFError(f"{place:,} of {len(content):,} bytes")
    return content


def _fault(info: ZipInfo) -> str:
    """Why a member cannot be read, according to the list of members."""
    if not info.filename.endswith(ENDING):
        return "is not an array of numpy"
    if info.filename.startswith("/") or "\\" in info.filename or ".." in info.filename.split("/"):
        return "has a name that leads out of the file"
    if info.flag_bits & 1:
        return "is encrypted"
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return f"is compressed in a way that numpy does not use (number {info.compress_type})"
    if info.compress_type == ZIP_STORED and info.compress_size != info.file_size:
        return f"claims {info.file_size:,} bytes and has {info.compress_size:,}"
    return ""


def _start(info: ZipInfo, end: int, whole: mmap) -> int:
    """Where the bytes of a member begin, according to its header; -1 if there is none."""
    if not 0 <= info.header_offset <= end - LOCAL.size:
        return -1
    mark, name, extra = LOCAL.unpack_from(whole, info.header_offset)
    return info.header_offset + LOCAL.size + name + extra if mark == b"PK\3\4" else -1


def _tensor(data: mmap | bytearray, start: int, size: int) -> Tensor:
    """The tensor of a .npy file that has so many bytes of the data; ValueError where it is not one."""
    text = BytesIO(bytes(data[start : start + min(size, LONGEST_HEADER)]))
    try:
        parse = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(text)]
        shape, fortran, dtype = parse(text)
    except Exception as error:  # numpy reports a bad header in many ways
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"has no header that numpy reads: {first}") from None
    brain = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None  # bfloat16
    if not brain and (dtype.kind not in "fiub" or dtype.itemsize > 8):
        raise ValueError(f"holds {dtype}, expected numbers")
    claimed, present = prod(shape) * dtype.itemsize, size - text.tell()
    if min(shape, default=0) < 0 or claimed != present:
        raise ValueError(f"of shape {shape} claims {claimed:,} bytes and has {present:,}")
    kept = np.dtype(np.int16) if brain else dtype
    content = np.frombuffer(data, np.uint8, claimed, start + text.tell())
    array = content.view(kept)
    if not array.flags.aligned:
        array = content.copy().view(kept)
    if not kept.isnative:
        array = array.astype(kept.newbyteorder("="))
    found = torch.from_numpy(array.reshape(shape, order="F" if fortran else "C"))
    return found.view(torch.bfloat16) if brain else found


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise WeightsError for a file that is not a zip file."""
    try:
        yield
    except WeightsError:
        raise
    except (BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        message = f"not a readable npz file: {error}"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=DOWNLOAD_AGAIN) from None


@contextmanager
def _naming(path: Path, name: str) -> Iterator[None]:
    """Raise WeightsError with the name of a member that is wrong."""
    try:
        yield
    except (BadZipFile, ZlibError, EOFError) as error:
        message = f"{name} is damaged: {error}"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=DOWNLOAD_AGAIN) from None
    except ValueError as error:
        raise WeightsError(f"{name} {error}", code="weights.bad_archive", where=path, hint=DOWNLOAD_AGAIN) from None
