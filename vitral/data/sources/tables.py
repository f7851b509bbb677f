"""Parquet and Arrow files, read with pyarrow: one cell at a time, and no file is held open."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
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
        value = read_cell(os.path.join(self.root, file), self.column, int(row))
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if data is not None:
            return data
        where = self.address(name)
        if not path:
            raise DataError("no image in this row", code="data.missing_image", where=where, remedy="remove the row")
        outside = os.path.join(self.root, path)
        if not os.path.isfile(outside):
            what = f"holds no image but the path {path}, and there is no such file"
            raise DataError(
                what,
                code="data.missing_file",
                where=where,
                remedy=f"put it into {self.root}, or save the images in the table",
            )
        return read_bytes(outside)

    def address(self, name: str) -> str:
        return os.path.join(self.root, name)

    def size(self, name: str) -> int:
        """As many bytes as `read` gives, and as much work: tables have no list of sizes."""
        return len(self.read(name))


def read_schema(path: str) -> Any:
    """The names and types of the columns."""
    with _readable(path):
        if suffix(path) == ".arrow":
            schema = _arrow(path, _version(path)).schema
        else:
            with _parquet(path) as file:
                schema = file.schema_arrow
        _ = schema.names  # names that are no text raise here, not where they are used
        return schema


def read_column(path: str, column: str) -> list[Any]:
    """All the values of a column."""
    with _readable(path):
        if suffix(path) == ".arrow":
            return _arrow(path, _version(path)).column(column).to_pylist()
        with _parquet(path) as file:
            return file.read(columns=[column], use_threads=False).column(column).to_pylist()


def read_cell(path: str, column: str, row: int) -> Any:
    """The value of a column in a row."""
    with _readable(path):
        version = _version(path)
        if suffix(path) == ".arrow":
            return _arrow(path, version).column(column)[row].as_py()
        starts = _starts(path, version)
        group = bisect_right(starts, row) - 1
        return _group(path, version, column, group)[row - starts[group]].as_py()


def _version(path: str) -> Version:
    """What changes when a file is written anew, so that nothing old is served from memory."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=TABLES_KEPT)
def _arrow(path: str, version: Version) -> Any:
    """The table in a file of Arrow's stream format. It is mapped, not read: a copy of the process shares the pages."""
    import pyarrow
    from pyarrow.ipc import open_stream

    with pyarrow.memory_map(path) as file:
        table = open_stream(file).read_all()
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


def _parquet(path: str) -> Any:
    """A Parquet file, to be closed again. Threads are not used: they do not survive in a copy of the process."""
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path, pre_buffer=False)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Whatever pyarrow says of a damaged file, or its absence, as an error of ours."""
    try:
        from pyarrow import ArrowException
    except ImportError:
        what = "reading Parquet or Arrow needs more packages"
        raise ConfigError(what, code="config.missing_package", where=path, remedy="pip install 'vitral[hub]'") from None
    try:
        yield
    except FileNotFoundError as error:
        raise unreadable(path, error) from None
    except (ArrowException, OSError, UnicodeDecodeError, LookupError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(
            f"not a readable table: {reason}", code="data.bad_table", where=path, remedy="fetch it again"
        ) from error
