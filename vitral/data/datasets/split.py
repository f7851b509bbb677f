"""Dividing images into training and validation, the same way every time, and `split.csv`, which says how."""

import csv
import hashlib
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from io import StringIO
from math import floor
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from vitral.core.config import Config
from vitral.core.errors import DataError, format_choices
from vitral.core.storage import STORAGE
from vitral.data.samples import SPLITS, Row, Split

HEADER = list(Row._fields)


class StratifiedSplit(Config):
    """A share of every class for validation, drawn from the seed and the names alone."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: int = 0


class SplitRows(NamedTuple):
    """Rows with the split they were given, and the classes whose only image had to stay in training."""

    rows: tuple[Row, ...]
    alone: tuple[str, ...]


def stratified_split(rows: Iterable[Row], how: StratifiedSplit) -> SplitRows:
    """The rows as train and val: of every class with two or more images, at least one in each.

    The draw depends on names and seed and not on the order of the rows, and one more image moves few others.
    """
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.label].append(row)
    divided: list[Row] = []
    for group in groups.values():
        held = min(max(1, floor(len(group) * how.fraction + 0.5)), len(group) - 1)
        drawn = sorted(group, key=lambda row: _draw(row.name, how.seed))
        divided += [row._replace(split="val" if rank < held else "train") for rank, row in enumerate(drawn)]
    alone = sorted(label for label, group in groups.items() if len(group) == 1)
    return SplitRows(tuple(sorted(divided, key=by_split_and_name)), tuple(alone))


def by_split_and_name(row: Row) -> tuple[int, str]:
    """The order of items in a data set, whatever order the file system or a manifest has."""
    return SPLITS.index(row.split), row.name


def write_split(path: Path, rows: Iterable[Row]) -> None:
    """Write `name,label,split` for each row; whoever looks finds the whole file or the one before it."""
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(HEADER)
    writer.writerows(rows)
    STORAGE.replace_file(path, text.getvalue().encode(errors="surrogateescape"))


def read_split(path: Path) -> tuple[Row, ...]:
    """The rows that `write_split` wrote."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            header, *lines = csv.reader(file, strict=True)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"not a split file: {error}", code="data.bad_split_file", where=str(path)) from None
    if header != HEADER:
        raise DataError(
            f"expected the columns {','.join(HEADER)}, found {','.join(header)}",
            code="data.bad_split_file",
            where=str(path),
        )
    return tuple(_row(path, number, line) for number, line in enumerate(lines, start=2))


def _row(path: Path, number: int, line: list[str]) -> Row:
    splits: dict[str, Split] = {split: split for split in SPLITS}
    if len(line) != len(HEADER) or line[2] not in splits:
        expected = f"name, label and {format_choices(SPLITS)}"
        raise DataError(
            f"expected {expected}, found {','.join(line)!r}", code="data.bad_split_file", where=f"{path}:{number}"
        )
    return Row(line[0], line[1], splits[line[2]])


def _draw(name: str, seed: int) -> bytes:
    # One file system gives composed letters and another decomposed ones for the same name.
    composed = unicodedata.normalize("NFC", name)
    return hashlib.blake2b(os.fsencode(f"{seed}\0{composed}"), digest_size=16).digest()
