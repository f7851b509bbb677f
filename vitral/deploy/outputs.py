"""Answers as text: a table, JSON, JSON Lines or CSV, written as they come.  B images, K classes.

What cannot be read has a row of its own in all but the table, with `error` and no classes.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, Protocol, get_args

from rich.cells import cell_len, set_cell_size

from vitral.data.pages import printable
from vitral.deploy.engine import Numbers
from vitral.deploy.likely import likeliest
from vitral.errors import ConfigError, VitralError, either, nearest

if TYPE_CHECKING:  # it would wait for torch
    from vitral.deploy.reading import Batch

Format = Literal["table", "json", "jsonl", "csv"]  # this line is the list of what is written
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS: dict[str, Format] = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


class Sink(Protocol):
    """Where what the model made of images goes."""

    def write(self, batch: "Batch", numbers: Numbers) -> None:
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


class Writer(Protocol):
    """The text of rows in some format."""

    def begin(self) -> str: ...

    def rows(self, rows: Sequence[Row]) -> str: ...

    def end(self) -> str: ...


def format_of(name: str) -> Format:
    """The format of that name."""
    for known in FORMATS:
        if known == name:
            return known
    remedy = nearest(name, FORMATS) or "choose one of them"
    raise ConfigError(
        f"expected {either(FORMATS)}, got {name!r}", code="config.unknown_name", where="--format", remedy=remedy
    )


@dataclass(frozen=True)
class Answers:
    """A sink that keeps the likeliest classes, as text."""

    file: BinaryIO
    writer: Writer
    classes: Sequence[str]
    top: int

    def write(self, batch: "Batch", numbers: Numbers) -> None:
        self.put(self.writer.rows(rows_of(batch, numbers, self.classes, self.top)))

    def put(self, text: str) -> None:
        """Names that are no Unicode get the escapes of JSON and Python, in which they can be told apart."""
        self.file.write(text.encode("utf-8", "backslashreplace"))
        self.file.flush()


@contextmanager
def answers(file: BinaryIO, format: Format, classes: Sequence[str], top: int) -> Iterator[Answers]:
    """A sink for so many classes an image; JSON is whole even where a bad file ended it."""
    most = min(top, len(classes))
    writer = writer_of(format, most)
    sink = Answers(file, writer, classes, most)
    sink.put(writer.begin())
    try:
        yield sink
    except VitralError:
        sink.put(writer.end())
        raise
    sink.put(writer.end())


def rows_of(batch: "Batch", logits: Numbers, classes: Sequence[str], top: int) -> list[Row]:
    """A row for each image of the batch, in order; the logits (B, K) are of those that could be read."""
    found = (tuple(Answer(classes[place], _short(chance)) for place, chance in each) for each in likeliest(logits, top))
    return [
        Row(name, (), batch.failed[place].what) if place in batch.failed else Row(name, next(found))
        for place, name in enumerate(batch.names)
    ]


def _short(number: float) -> float:
    """As many digits as mean anything."""
    return float(f"{number:.6g}")


class Table:
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


class JsonLines:
    """An object for each image, on a line of its own."""

    def begin(self) -> str:
        return ""

    def rows(self, rows: Sequence[Row]) -> str:
        return "".join(f"{_json(row)}\n" for row in rows)

    def end(self) -> str:
        return ""


class Json:
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


class Csv:
    """A line for each image: path, class, probability, then class_2, probability_2 and so on, and last the error."""

    def __init__(self, top: int) -> None:
        self.top = top

    def begin(self) -> str:
        ranks = ["", *(f"_{rank}" for rank in range(2, self.top + 1))]
        return _csv(["path", *(f"{what}{rank}" for rank in ranks for what in ("class", "probability")), "error"])

    def rows(self, rows: Sequence[Row]) -> str:
        return "".join(_csv(self._fields(row)) for row in rows)

    def end(self) -> str:
        return ""

    def _fields(self, row: Row) -> list[object]:
        found = [field for answer in row.answers for field in answer]
        return [row.path, *found, *[""] * (2 * self.top - len(found)), row.error]


def writer_of(format: Format, top: int) -> Writer:
    """The writer of a format."""
    match format:
        case "table":
            return Table(top)
        case "json":
            return Json()
        case "jsonl":
            return JsonLines()
        case "csv":
            return Csv(top)


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
