"""Writing predictions as text (table, JSON, JSON Lines, CSV) and features as `.npz` or `.parquet`, batch by batch.

A large output may be written in shards, each by its own process. A file has its final name only once it is complete and
on disk, whatever ends the process.
B images, N in all, K classes, D width. Images that could not be read have no row among features.
"""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol, get_args
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from rich.cells import cell_len, set_cell_size

from vitral.core.activation import Activation, probabilities
from vitral.core.errors import ConfigError, VitralError, did_you_mean, format_choices
from vitral.core.storage import new_file, os_error_message, wrap_write_errors, write_hint
from vitral.data.datasets.files import suffix
from vitral.html.page import printable
from vitral.inference.engines.engine import FloatArray

if TYPE_CHECKING:
    from vitral.inference.batches import Batch

RERUN = "run it again"
SHARD = re.compile("([0-9]{1,9})/([0-9]{1,9})")


def topk(logits: FloatArray, k: int, activation: Activation = "softmax") -> Iterator[list[tuple[int, float]]]:
    """For each image the k most probable classes and their probabilities. Among equal ones the first comes first."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]  # (B, k), by logits: probabilities may be equal at zero
    scores = np.take_along_axis(probabilities(logits, activation), order, axis=1)  # (B, k)
    for classes, row in zip(order.tolist(), scores.tolist(), strict=True):
        yield list(zip(classes, row, strict=True))


Format = Literal["table", "json", "jsonl", "csv"]  # this line is the list of what is written
FORMATS: tuple[Format, ...] = get_args(Format)
FORMAT_BY_SUFFIX: dict[str, Format] = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


class Prediction(NamedTuple):
    """The most probable classes of an image, the first of them first, or why it could not be read."""

    path: str
    labels: tuple[str, ...]
    scores: tuple[float, ...]
    engine: str = ""  # that computed them
    error: str = ""

    def __repr__(self) -> str:
        """`Prediction(cat.jpg: cat 97.1%, dog 2.0%)`."""
        found = ", ".join(f"{label} {score:.1%}" for label, score in zip(self.labels, self.scores, strict=True))
        return f"Prediction({self.path}: {self.error or found})"


class BatchWriter(Protocol):
    """Where the outputs of a model go."""

    def write(self, batch: "Batch", outputs: FloatArray) -> None:
        """Write the outputs (B, K) of those images of a batch that could be read."""
        ...


class Formatter:
    """The text of predictions in one format."""

    def begin(self) -> str:
        """What comes before the first row."""
        return ""

    def rows(self, rows: Sequence[Prediction]) -> str:
        raise NotImplementedError

    def end(self) -> str:
        """What comes after the last row."""
        return ""


def parse_format(name: str) -> Format:
    """The format of that name."""
    for known in FORMATS:
        if known == name:
            return known
    message = f"expected {format_choices(FORMATS)}, got {name!r}"
    hint = did_you_mean(name, FORMATS) or "choose one of them"
    raise ConfigError(message, code="config.unknown_name", where="--format", hint=hint)


@dataclass(frozen=True)
class PredictionWriter:
    """Writes the top classes as text."""

    file: BinaryIO
    formatter: Formatter
    classes: Sequence[str]
    top: int
    activation: Activation
    engine: str

    def write(self, batch: "Batch", outputs: FloatArray) -> None:
        predictions = make_predictions(batch, outputs, self.classes, self.top, self.activation, self.engine)
        self.put(self.formatter.rows(predictions))

    def put(self, text: str) -> None:
        """Names that are not valid Unicode are written with backslash escapes."""
        self.file.write(text.encode("utf-8", "backslashreplace"))
        self.file.flush()


@contextmanager
def open_prediction_writer(
    file: BinaryIO,
    format: Format,
    classes: Sequence[str],
    top: int,
    activation: Activation = "softmax",
    engine: str = "",
) -> Iterator[PredictionWriter]:
    """A writer of the top classes. JSON is complete even where an unreadable file ends it."""
    k = min(top, len(classes))
    formatter = make_formatter(format, k)
    writer = PredictionWriter(file, formatter, classes, k, activation, engine)
    writer.put(formatter.begin())
    try:
        yield writer
    except VitralError:
        writer.put(formatter.end())
        raise
    writer.put(formatter.end())


def make_predictions(
    batch: "Batch",
    logits: FloatArray,
    classes: Sequence[str],
    top: int,
    activation: Activation = "softmax",
    engine: str = "",
) -> list[Prediction]:
    """A prediction for each image of the batch, in order; the logits (B, K) are of those that could be read."""
    rows = topk(logits, top, activation)
    predictions = []
    for index, path in enumerate(batch.names):
        if index in batch.failed:
            predictions.append(Prediction(path, (), (), error=batch.failed[index].message))
        else:
            predictions.append(Prediction(path, *name_classes(next(rows), classes), engine))
    return predictions


def name_classes(row: Sequence[tuple[int, float]], classes: Sequence[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The labels and the scores of a row of `topk`."""
    return tuple(classes[each] for each, _ in row), tuple(score for _, score in row)


def _rounded(score: float) -> float:
    """Six digits: more are noise."""
    return float(f"{score:.6g}")


class TableFormatter(Formatter):
    """A line for each image, in columns that widen as needed."""

    def __init__(self, top: int) -> None:
        self.widths = [0] * (1 + 2 * top)

    def rows(self, rows: Sequence[Prediction]) -> str:
        lines = [self._cells(row) for row in rows if not row.error]
        for cells in lines:
            self.widths = [max(width, cell_len(cell)) for width, cell in zip(self.widths, cells, strict=False)]
        return "".join(self._line(cells) for cells in lines)

    def _cells(self, row: Prediction) -> list[str]:
        cells = [printable(row.path)]
        for label, score in zip(row.labels, row.scores, strict=True):
            cells += [printable(label), f"{_rounded(score):.1%}"]
        return cells

    def _line(self, cells: list[str]) -> str:
        fitted = [set_cell_size(cell, width) for cell, width in zip(cells, self.widths, strict=True)]
        return "  ".join(fitted).rstrip() + "\n"


class JsonLinesFormatter(Formatter):
    """One object a line."""

    def rows(self, rows: Sequence[Prediction]) -> str:
        return "".join(f"{_json(row)}\n" for row in rows)


class JsonFormatter(Formatter):
    """One list of objects."""

    before = "\n"  # the next object

    def begin(self) -> str:
        return "["

    def rows(self, rows: Sequence[Prediction]) -> str:
        text = self.before + ",\n".join(map(_json, rows)) if rows else ""
        self.before = ",\n" if rows else self.before
        return text

    def end(self) -> str:
        return "\n]\n"


class CsvFormatter(Formatter):
    """A line for each image: path, class, probability, then class_2, probability_2 and so on, and last the error."""

    def __init__(self, top: int) -> None:
        self.top = top

    def begin(self) -> str:
        ranks = ["", *(f"_{rank}" for rank in range(2, self.top + 1))]
        return _csv(["path", *(f"{column}{rank}" for rank in ranks for column in ("class", "probability")), "error"])

    def rows(self, rows: Sequence[Prediction]) -> str:
        return "".join(_csv(self._fields(row)) for row in rows)

    def _fields(self, row: Prediction) -> list[object]:
        pairs = list(chain.from_iterable(zip(row.labels, map(_rounded, row.scores), strict=True)))
        return [row.path, *pairs, *[""] * (2 * self.top - len(pairs)), row.error]


def make_formatter(format: Format, top: int) -> Formatter:
    """The writer of a format."""
    match format:
        case "table":
            return TableFormatter(top)
        case "json":
            return JsonFormatter()
        case "jsonl":
            return JsonLinesFormatter()
        case "csv":
            return CsvFormatter(top)


def _json(row: Prediction) -> str:
    if row.error:
        return json.dumps({"path": row.path, "error": row.error}, ensure_ascii=False)
    pairs = zip(row.labels, row.scores, strict=True)
    answers = [{"class": label, "probability": _rounded(score)} for label, score in pairs]
    return json.dumps({"path": row.path, "answers": answers, "engine": row.engine}, ensure_ascii=False)


def _csv(fields: Iterable[object]) -> str:
    """A line of CSV. Only with CRLF as its line end does the csv module also quote a field with a lone CR in it."""
    stream = StringIO()
    csv.writer(stream, lineterminator="\r\n").writerow(fields)
    return stream.getvalue().removesuffix("\r\n") + "\n"


FEATURE_SUFFIXES = (".npz", ".parquet")
ROW_GROUP_SIZE = 1 << 22  # of float32 in a row group of Parquet
NAMES_AT_A_TIME = 4096  # written at a time


def check_features_path(path: Path) -> None:
    """Raise ConfigError for an unknown suffix, or where the package that writes it is missing."""
    if suffix(path.name) not in FEATURE_SUFFIXES:
        message = f"expected a file that ends in {format_choices(FEATURE_SUFFIXES)}, got {path.name!r}"
        hint = f"write {path.stem or 'features'}.npz"
        raise ConfigError(message, code="config.unknown_format", where="--features", hint=hint)
    if suffix(path.name) == ".parquet":
        _pyarrow()


def open_feature_writer(file: BinaryIO, path: Path, width: int) -> AbstractContextManager[BatchWriter]:
    """A writer of features of this width, in the format of the path's suffix."""
    return _parquet(file, width) if suffix(path.name) == ".parquet" else _npz(file, path, width)


@contextmanager
def _npz(file: BinaryIO, path: Path, width: int) -> Iterator[BatchWriter]:
    """An archive of `names` (N,) and `features` (N, D), assembled at the end, when N is known."""
    folder = path.parent
    with TemporaryFile(dir=folder) as rows, TemporaryFile(dir=folder) as names:  # unnamed, so never left behind
        spool = _Spool(rows, names, path)
        yield spool
        with report_write_errors(path), ZipFile(file, "w") as archive:
            with archive.open("names.npy", "w", force_zip64=True) as part:
                _header(part, f"<U{spool.longest}", (spool.count,))
                names.seek(0)
                for chunk in _chunks(names):
                    part.write(np.array(chunk, dtype=f"<U{spool.longest}").tobytes())
            with archive.open("features.npy", "w", force_zip64=True) as part:
                _header(part, "<f4", (spool.count, width))
                rows.seek(0)
                copyfileobj(rows, part, 1 << 20)


class _Spool:
    """Rows and names in temporary files."""

    def __init__(self, rows: IO[bytes], names: IO[bytes], part: Path) -> None:
        self.rows, self.names, self.part = rows, names, part
        self.count, self.longest = 0, 1

    def write(self, batch: "Batch", outputs: FloatArray) -> None:
        with report_write_errors(self.part):
            self.rows.write(outputs.astype("<f4").tobytes())
            self.names.writelines(f"{json.dumps(name)}\n".encode() for name in batch.readable)
        self.count += len(batch.readable)
        self.longest = max([self.longest, *map(len, batch.readable)])


def _header(part: IO[bytes], kind: str, shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(part, {"descr": kind, "fortran_order": False, "shape": shape})


def _chunks(lines: IO[bytes]) -> Iterator[list[str]]:
    while chunk := [json.loads(line) for line in islice(lines, NAMES_AT_A_TIME)]:
        yield chunk


@contextmanager
def _parquet(file: BinaryIO, width: int) -> Iterator[BatchWriter]:
    """A table of `path` and `features`, a list of D numbers."""
    arrow, parquet = _pyarrow()
    columns = arrow.schema([("path", arrow.string()), ("features", arrow.list_(arrow.float32(), width))])
    with parquet.ParquetWriter(file, columns) as writer:
        groups = _RowGroups(arrow, writer, columns)
        yield groups
        groups.flush()


class _RowGroups:
    """Rows, written whenever they fill a row group."""

    def __init__(self, arrow: Any, writer: Any, columns: Any) -> None:
        self.arrow, self.writer, self.columns = arrow, writer, columns
        self.names: list[str] = []
        self.rows: list[FloatArray] = []

    def write(self, batch: "Batch", outputs: FloatArray) -> None:
        self.names += (name.encode("utf-8", "backslashreplace").decode() for name in batch.readable)
        self.rows += [outputs] if len(outputs) else []  # without images the width is unknown
        if sum(row.size for row in self.rows) >= ROW_GROUP_SIZE:
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
        message, hint = "writing Parquet needs more packages", "pip install 'vitral[hub]', or write .npz"
        raise ConfigError(message, code="config.missing_package", where="--features", hint=hint) from None
    return pyarrow, pyarrow.parquet


class Shard(NamedTuple):
    """One of several shares of the images, counted from 1.

    A hash of its name decides the share of an image, so that adding or removing others does not move it.
    """

    number: int
    of: int

    def contains(self, name: str) -> bool:
        """Whether the image of that name is in this share; every image is in exactly one."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) % self.of == self.number - 1


WHOLE = Shard(1, 1)


def parse_shard(text: str) -> Shard:
    """The shard that a text such as `2/8` names."""
    match = SHARD.fullmatch(text.strip())
    if match and 1 <= int(match[1]) <= int(match[2]):
        return Shard(int(match[1]), int(match[2]))
    message = f"expected I/N with I from 1 to N, such as 2/8, got {text!r}"
    hint = "give the number of the shard, from 1, and the number of shards"
    raise ConfigError(message, code="config.bad_shard", where="--shard", hint=hint)


def output_exists(path: Path, option: str) -> bool:
    """Whether the output file exists; raises ConfigError if something else has its name."""
    if os.path.lexists(path) and not path.is_file():
        found = "a folder" if path.is_dir() else "something else"
        message = f"expected a file to write, found {found} at {path}"
        raise ConfigError(message, code="config.path_exists", where=option, hint="name a new file")
    return path.is_file()


@contextmanager
def open_output(path: Path, option: str) -> Iterator[BinaryIO]:
    """A file that has its final name only after the block succeeds; after an error there is no file.

    An OSError of the disk becomes an error that names the file; other errors pass through.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(new_file(path, then=RERUN))
        except OSError as error:
            message = f"expected a file that can be written, and {path} cannot: {os_error_message(error)}"
            hint = f"{write_hint(error)}, or name another file"
            raise ConfigError(message, code="config.not_writable", where=option, hint=hint) from error
        yield file


def report_write_errors(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError in the block into an error that names the output file."""
    return wrap_write_errors(path, then=RERUN)
