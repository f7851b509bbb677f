"""Features in a file: `.npz` for NumPy or `.parquet` for tables, written as they come.  B images, N in all, D width.

Files that could not be read have no row there.

From logits to what is likely, without torch.  B images, K classes.
Answers as text: a table, JSON, JSON Lines or CSV, written as they come.  B images, K classes.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol, get_args
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from rich.cells import cell_len, set_cell_size

from vitral.core.errors import ConfigError, VitralError, format_choices, did_you_mean
from vitral.data.datasets.files import suffix
from vitral.html.page import printable
from vitral.inference.engines.engine import FloatArray
from vitral.inference.output_shards import report_write_errors

if TYPE_CHECKING:
    from vitral.inference.batches import Batch


def probabilities(logits: FloatArray) -> FloatArray:
    """How likely each class is (B, K); the numbers of an image sum to one."""
    exact = logits.astype(np.float64)
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))  # (B, K)
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def topk(logits: FloatArray, top: int) -> Iterator[list[tuple[int, float]]]:
    """For each image the likeliest classes by number, and how likely they are; of equal ones the first comes first."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :top]  # (B, top), by logits: chances may be equal at zero
    chances = np.take_along_axis(probabilities(logits), order, axis=1)  # (B, top)
    for places, numbers in zip(order.tolist(), chances.tolist(), strict=True):
        yield list(zip(places, numbers, strict=True))


Format = Literal["table", "json", "jsonl", "csv"]  # this line is the list of what is written
FORMATS: tuple[Format, ...] = get_args(Format)
FORMAT_BY_SUFFIX: dict[str, Format] = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


class Sink(Protocol):
    """Where what the model made of images goes."""

    def write(self, batch: "Batch", numbers: FloatArray) -> None:
        """Take a batch, and the numbers (B, K) for those of its images that could be read."""
        ...


class Answer(NamedTuple):
    """A class, and how probable the model holds it to be."""

    name: str
    probability: float


class Row(NamedTuple):
    """What there is to say of one image: the likeliest classes, the first of them first, or what is wrong with it."""

    path: str
    answers: tuple[Answer, ...]
    error: str = ""


class Formatter(Protocol):
    """The text of rows in some format."""

    def begin(self) -> str: ...

    def rows(self, rows: Sequence[Row]) -> str: ...

    def end(self) -> str: ...


def parse_format(name: str) -> Format:
    """The format of that name."""
    for known in FORMATS:
        if known == name:
            return known
    hint = did_you_mean(name, FORMATS) or "choose one of them"
    raise ConfigError(
        f"expected {format_choices(FORMATS)}, got {name!r}", code="config.unknown_name", where="--format", hint=hint
    )


@dataclass(frozen=True)
class Answers:
    """A sink that keeps the likeliest classes, as text."""

    file: BinaryIO
    writer: Formatter
    classes: Sequence[str]
    top: int

    def write(self, batch: "Batch", numbers: FloatArray) -> None:
        self.put(self.writer.rows(rows_of(batch, numbers, self.classes, self.top)))

    def put(self, text: str) -> None:
        """Names that are no Unicode get the escapes of JSON and Python, in which they can be told apart."""
        self.file.write(text.encode("utf-8", "backslashreplace"))
        self.file.flush()


@contextmanager
def answers(file: BinaryIO, format: Format, classes: Sequence[str], top: int) -> Iterator[Answers]:
    """A sink for so many classes an image; JSON is whole even where a bad file ended it."""
    most = min(top, len(classes))
    writer = make_formatter(format, most)
    sink = Answers(file, writer, classes, most)
    sink.put(writer.begin())
    try:
        yield sink
    except VitralError:
        sink.put(writer.end())
        raise
    sink.put(writer.end())


def rows_of(batch: "Batch", logits: FloatArray, classes: Sequence[str], top: int) -> list[Row]:
    """A row for each image of the batch, in order; the logits (B, K) are of those that could be read."""
    found = (tuple(Answer(classes[place], _short(chance)) for place, chance in each) for each in topk(logits, top))
    return [
        Row(name, (), batch.failed[place].message) if place in batch.failed else Row(name, next(found))
        for place, name in enumerate(batch.names)
    ]


def _short(number: float) -> float:
    """As many digits as mean anything."""
    return float(f"{number:.6g}")


class TableFormatter:
    """For people: a line for each image, in columns that grow with what they hold."""

    def __init__(self, top: int) -> None:
        self.widths = [0] * (1 + 2 * top)

    def begin(self) -> str:
        return ""

    def rows(self, rows: Sequence[Row]) -> str:
        lines = [self._cells(row) for row in rows if not row.error]
        for cells in lines:
            self.widths = [max(width, cell_len(cell)) for width, cell in zip(self.widths, cells, strict=False)]
        return "".join(self._line(cells) for cells in lines)

    def end(self) -> str:
        return ""

    def _cells(self, row: Row) -> list[str]:
        cells = [printable(row.path)]
        for answer in row.answers:
            cells += [printable(answer.name), f"{answer.probability:.1%}"]
        return cells

    def _line(self, cells: list[str]) -> str:
        fitted = [set_cell_size(cell, width) for cell, width in zip(cells, self.widths, strict=True)]
        return "  ".join(fitted).rstrip() + "\n"


class JsonLinesFormatter:
    """An object for each image, on a line of its own."""

    def begin(self) -> str:
        return ""

    def rows(self, rows: Sequence[Row]) -> str:
        return "".join(f"{_json(row)}\n" for row in rows)

    def end(self) -> str:
        return ""


class JsonFormatter:
    """One list of all the objects, each on a line."""

    def __init__(self) -> None:
        self.before = "\n"

    def begin(self) -> str:
        return "["

    def rows(self, rows: Sequence[Row]) -> str:
        text = ""
        for row in rows:
            text += f"{self.before}{_json(row)}"
            self.before = ",\n"
        return text

    def end(self) -> str:
        return "\n]\n"


class CsvFormatter:
    """A line for each image: path, class, probability, then class_2, probability_2 and so on, and last the error."""

    def __init__(self, top: int) -> None:
        self.top = top

    def begin(self) -> str:
        ranks = ["", *(f"_{rank}" for rank in range(2, self.top + 1))]
        return _csv(["path", *(f"{message}{rank}" for rank in ranks for message in ("class", "probability")), "error"])

    def rows(self, rows: Sequence[Row]) -> str:
        return "".join(_csv(self._fields(row)) for row in rows)

    def end(self) -> str:
        return ""

    def _fields(self, row: Row) -> list[object]:
        found = [field for answer in row.answers for field in answer]
        return [row.path, *found, *[""] * (2 * self.top - len(found)), row.error]


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


def _json(row: Row) -> str:
    if row.error:
        return json.dumps({"path": row.path, "error": row.error}, ensure_ascii=False)
    found = [{"class": answer.name, "probability": answer.probability} for answer in row.answers]
    return json.dumps({"path": row.path, "answers": found}, ensure_ascii=False)


def _csv(fields: Iterable[object]) -> str:
    """A line of CSV. Only with this end of a line does the writer also quote a field that has half of it inside."""
    stream = StringIO()
    csv.writer(stream, lineterminator="\r\n").writerow(fields)
    return stream.getvalue().removesuffix("\r\n") + "\n"


FEATURE_SUFFIXES = (".npz", ".parquet")
ROW_GROUP_SIZE = 1 << 22  # of float32 in a row group of Parquet
NAMES_AT_A_TIME = 4096  # written at a time


def check_features_path(path: Path) -> None:
    """Refuse a file for features of which the kind, or the package that writes it, is unknown here."""
    if suffix(path.name) not in FEATURE_SUFFIXES:
        message = f"expected a file that ends in {format_choices(FEATURE_SUFFIXES)}, got {path.name!r}"
        raise ConfigError(
            message, code="config.unknown_format", where="--features", hint=f"write {path.stem or 'features'}.npz"
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
        with report_write_errors(path), ZipFile(file, "w") as archive:
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

    def write(self, batch: "Batch", numbers: FloatArray) -> None:
        with report_write_errors(self.part):
            self.rows.write(numbers.astype("<f4").tobytes())
            self.names.writelines(f"{json.dumps(name)}\n".encode() for name in batch.good)
        self.count += len(batch.good)
        self.longest = max([self.longest, *map(len, batch.good)])


def _header(part: IO[bytes], kind: str, shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(part, {"descr": kind, "fortran_order": False, "shape": shape})


def _chunks(lines: IO[bytes]) -> Iterator[list[str]]:
    while chunk := [json.loads(line) for line in islice(lines, NAMES_AT_A_TIME)]:
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
        self.rows: list[FloatArray] = []

    def write(self, batch: "Batch", numbers: FloatArray) -> None:
        self.names += (name.encode("utf-8", "backslashreplace").decode() for name in batch.good)
        self.rows += [numbers] if len(numbers) else []  # of no images nobody knows the width
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
        message = "writing Parquet needs more packages"
        raise ConfigError(
            message, code="config.missing_package", where="--features", hint="pip install 'vitral[hub]', or write .npz"
        ) from None
    return pyarrow, pyarrow.parquet
