"""A reproducible split into training and validation images, and `split.csv`, which records it."""

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
from vitral.core.storage import write_file_atomically
from vitral.data.samples import SPLITS, Row


class StratifiedSplit(Config):
    """A fraction of every class for validation, drawn from the seed and the names alone."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: int = 0


class SplitRows(NamedTuple):
    """Rows with their split, and the classes whose only image stays in training."""

    rows: tuple[Row, ...]
    singletons: tuple[str, ...]


def stratified_split(rows: Iterable[Row], val_split: StratifiedSplit) -> SplitRows:
    """The rows as train and val: of every class with two or more images, at least one in each.

    The draw depends on names and seed and not on the order of the rows, and one more image moves few others.
    """
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.label].append(row)
    divided: list[Row] = []
    for group in groups.values():
        held = min(max(1, floor(len(group) * val_split.fraction + 0.5)), len(group) - 1)
        drawn = sorted(group, key=lambda row: _draw(row.name, val_split.seed))
        divided += [row._replace(split="val" if rank < held else "train") for rank, row in enumerate(drawn)]
    singletons = sorted(label for label, group in groups.items() if len(group) == 1)
    return SplitRows(tuple(sorted(divided, key=by_split_and_name)), tuple(singletons))


def by_split_and_name(row: Row) -> tuple[int, str]:
    """The order of items in a data set, whatever order the file system or a manifest has."""
    return SPLITS.index(row.split), row.name


def write_split(path: Path, rows: Iterable[Row]) -> None:
    """Write `name,label,split` for each row, atomically."""
    text = StringIO(newline="")
    csv.writer(text).writerows([Row._fields, *rows])
    write_file_atomically(path, text.getvalue().encode("utf-8", errors="surrogateescape"))


def _draw(name: str, seed: int) -> bytes:
    # One file system gives composed letters and another decomposed ones for the same name.
    composed = unicodedata.normalize("NFC", name)
    return hashlib.blake2b(os.fsencode(f"{seed}\0{composed}"), digest_size=16).digest()
