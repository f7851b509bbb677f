"""Features in a file: `.npz` for NumPy or `.parquet` for tables, written as they come.  B images, N in all, D width.

Files that could not be read have no row there.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy

from vitral.data.sources.files import suffix
from vitral.deploy.engine import Numbers
from vitral.deploy.outputs import Sink
from vitral.deploy.parts import refusal_told
from vitral.errors import ConfigError, either

if TYPE_CHECKING:  # it would wait for torch
    from vitral.deploy.reading import Batch

KINDS = (".npz", ".parquet")
NUMBERS = 1 << 22  # of float32 in a row group of Parquet
NAMES = 4096  # written at a time


def check_vectors(path: Path) -> None:
    """Refuse a file for features of which the kind, or the package that writes it, is unknown here."""
    if suffix(path.name) not in KINDS:
        what = f"expected a file that ends in {either(KINDS)}, got {path.name!r}"
        raise ConfigError(
            what, code="config.unknown_format", where="--features", remedy=f"write {path.stem or 'features'}.npz"
        )
    if suffix(path.name) == ".parquet":
        _pyarrow()


def vectors(file: BinaryIO, path: Path, width: int) -> AbstractContextManager[Sink]:
    """A sink that writes vectors of so many numbers into the file, of the kind that its path tells."""
    return _parquet(file, width) if suffix(path.name) == ".parquet" else _npz(file, path, width)


@contextmanager
def _npz(file: BinaryIO, path: Path, width: int) -> Iterator[Sink]:
    """An archive of `names` (N,) and `features` (N, D), put together at the end, when N is known."""
    folder = path.parent
    with TemporaryFile(dir=folder) as rows, TemporaryFile(dir=folder) as names:  # without a name, so never left behind
        sink = _Spool(rows, names, path)
        yield sink
        with refusal_told(path), ZipFile(file, "w") as archive:
            with archive.open("names.npy", "w", force_zip64=True) as part:
                _header(part, f"<U{sink.longest}", (sink.count,))
                names.seek(0)
                for chunk in _chunks(names):
                    part.write(np.array(chunk, dtype=f"<U{sink.longest}").tobytes())
            with archive.open("features.npy", "w", force_zip64=True) as part:
                _header(part, "<f4", (sink.count, width))
                rows.seek(0)
                copyfileobj(rows, part, 1 << 20)


class _Spool:
    """Rows and names on the disk, one after the other."""

    def __init__(self, rows: IO[bytes], names: IO[bytes], part: Path) -> None:
        self.rows, self.names, self.part = rows, names, part
        self.count, self.longest = 0, 1

    def write(self, batch: "Batch", numbers: Numbers) -> None:
        with refusal_told(self.part):
            self.rows.write(numbers.astype("<f4").tobytes())
            self.names.writelines(f"{json.dumps(name)}\n".encode() for name in batch.good)
        self.count += len(batch.good)
        self.longest = max([self.longest, *map(len, batch.good)])


def _header(part: IO[bytes], kind: str, shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(part, {"descr": kind, "fortran_order": False, "shape": shape})


def _chunks(lines: IO[bytes]) -> Iterator[list[str]]:
    while chunk := [json.loads(line) for line in islice(lines, NAMES)]:
        yield chunk


@contextmanager
def _parquet(file: BinaryIO, width: int) -> Iterator[Sink]:
    """A table of `path` and `features`, a list of D numbers."""
    arrow, parquet = _pyarrow()
    columns = arrow.schema([("path", arrow.string()), ("features", arrow.list_(arrow.float32(), width))])
    with parquet.ParquetWriter(file, columns) as writer:
        sink = _Groups(arrow, writer, columns)
        yield sink
        sink.flush()


class _Groups:
    """Rows that are written to a table as soon as they fill a row group."""

    def __init__(self, arrow: Any, writer: Any, columns: Any) -> None:
        self.arrow, self.writer, self.columns = arrow, writer, columns
        self.names: list[str] = []
        self.rows: list[Numbers] = []

    def write(self, batch: "Batch", numbers: Numbers) -> None:
        self.names += (name.encode("utf-8", "backslashreplace").decode() for name in batch.good)
        self.rows += [numbers] if len(numbers) else []  # of no images nobody knows the width
        if sum(row.size for row in self.rows) >= NUMBERS:
            self.flush()

    def flush(self) -> None:
        if self.names:
            flat = self.arrow.array(np.concatenate(self.rows).reshape(-1))
            width = self.columns.field("features").type.list_size
            features = self.arrow.FixedSizeListArray.from_arrays(flat, width)
            self.writer.write_table(self.arrow.table([self.names, features], schema=self.columns))
        self.names, self.rows = [], []


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        what = "writing Parquet needs more packages"
        raise ConfigError(
            what, code="config.missing_package", where="--features", remedy="pip install 'vitral[hub]', or write .npz"
        ) from None
    return pyarrow, pyarrow.parquet
