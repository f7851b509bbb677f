"""Parquet and Arrow files, read with pyarrow: one cell at a time, and no file is held open."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from types import ModuleType
from typing import Any

from vitral.data.sources.files import read_bytes, suffix, unreadable
from vitral.errors import ConfigError, DataError

Version = tuple[int, int]
TABLES_KEPT = 4096  # maps of Arrow files and tables of contents of Parquet files
GROUPS_KEPT = 4  # row groups of Parquet in memory, often of a hundred images each


@dataclass(frozen=True)
class Cells:
    """A store of the cells of one column, named `data/train.parquet#0000012`: the file and the row.

    A cell holds the bytes of an image, or the path of its file from the root.
    """

    root: str
    column: str

    def read(self, name: str) -> bytes:
        file, _, row = name.rpartition("#")
        value = _cell(os.path.join(self.root, file), self.column, int(row))
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if data is not None:
            return data
        where = os.path.join(self.root, name)
        if not path:
            raise DataError("no image in this row", where=where, remedy="remove the row")
        outside = os.path.join(self.root, path)
        if not os.path.isfile(outside):
            what = f"holds no image but the path {path}, and there is no such file"
            raise DataError(what, where=where, remedy=f"put it into {self.root}, or save the images in the table")
        return read_bytes(outside)

    def size(self, name: str) -> int:
        """As many bytes as `read` gives, and as much work: tables have no list of sizes."""
        return len(self.read(name))


def read_schema(path: str) -> Any:
    """The names and types of the columns."""
    if suffix(path) == ".parquet":
        with _parquet(path) as file:
            return file.schema_arrow
    return _arrow(path, _version(path)).schema


def read_column(path: str, column: str) -> list[Any]:
    """All the values of a column."""
    if suffix(path) == ".parquet":
        with _parquet(path) as file:
            return file.read(columns=[column], use_threads=False).column(column).to_pylist()
    return _arrow(path, _version(path)).column(column).to_pylist()


def _cell(path: str, column: str, row: int) -> Any:
    if suffix(path) == ".arrow":
        return _arrow(path, _version(path)).column(column)[row].as_py()
    starts = _starts(path, _version(path))
    group = bisect_right(starts, row) - 1
    return _group(path, _version(path), column, group)[row - starts[group]].as_py()


def _version(path: str) -> Version:
    """What changes when a file is written anew, so that nothing old is served from memory."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=TABLES_KEPT)
def _arrow(path: str, version: Version) -> Any:
    """The table in a file of Arrow's stream format. It is mapped, not read: a copy of the process shares the pages."""
    pyarrow = _pyarrow(path)
    with _readable(path), pyarrow.memory_map(path) as file:
        table = pyarrow.ipc.open_stream(file).read_all()
        table.validate(full=True)  # Arrow trusts the offsets in a file, and a wrong one would end the process
        return table


@lru_cache(maxsize=TABLES_KEPT)
def _starts(path: str, version: Version) -> tuple[int, ...]:
    """The first row of each row group, and the row after the last."""
    with _parquet(path) as file:
        groups = range(file.num_row_groups)
        return tuple(accumulate((file.metadata.row_group(group).num_rows for group in groups), initial=0))


@lru_cache(maxsize=GROUPS_KEPT)
def _group(path: str, version: Version, column: str, group: int) -> Any:
    with _parquet(path) as file:
        return file.read_row_group(group, columns=[column], use_threads=False).column(column)


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """A Parquet file, open for a moment. Threads are not used: they do not survive in a copy of the process."""
    _pyarrow(path)
    from pyarrow.parquet import ParquetFile

    with _readable(path), ParquetFile(path, pre_buffer=False) as file:
        yield file


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Whatever pyarrow says of a damaged file, as an error of ours."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"not a readable table: {reason}", where=path, remedy="fetch it again") from error


def _pyarrow(path: str) -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise ConfigError(
            "reading Parquet or Arrow needs more packages", where=path, remedy="pip install 'vitral[hub]'"
        ) from None
    return pyarrow
