"""`shards.json`: all that is needed to open a pack without reading its tars."""

import json
import os
from typing import NamedTuple

from vitral.core.errors import DataError
from vitral.data.samples import SPLITS, Split

INDEX = "shards.json"
DRAFT = "shards.unfinished.json"  # the same, while there are shards to be written
CLASSES = "classes.txt"  # what the numbers in `.cls` stand for, a line for each: for us and for other readers
FORMAT = 1
AGAIN = "pack the data again"


class Shard(NamedTuple):
    """One tar and the images in it, column by column."""

    file: str
    split: Split
    bytes: int
    names: tuple[str, ...]
    labels: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


class Index(NamedTuple):
    """A data set in shards, with the classes, the notes and the fingerprint that it had before it was packed."""

    classes: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str
    shards: tuple[Shard, ...]

    def to_json(self) -> str:
        """JSON with a line for each shard. Names that are not Unicode are kept too."""
        head = {"format": FORMAT, **self._asdict()}
        shards = ",\n".join(json.dumps(shard._asdict(), separators=(",", ":")) for shard in head.pop("shards"))
        return f'{json.dumps(head, indent=1).removesuffix("}").rstrip()},\n "shards": [\n{shards}\n]}}\n'


def parse_index(text: bytes, where: str) -> Index:
    """The index that `to_json` wrote; anything else is refused, since offsets that are wrong give wrong images."""
    try:
        fields = json.loads(text)
        found = int(fields.pop("format"))
        if found == FORMAT:
            shards = tuple(_shard(shard) for shard in fields.pop("shards"))
            classes, notes = tuple(map(str, fields.pop("classes"))), tuple(map(str, fields.pop("notes")))
            index = Index(classes, notes, str(fields.pop("fingerprint")), shards)
            _check(index)
            return index
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"not an index that vitral wrote: {type(error).__name__} {error}"
        raise DataError(message, code="data.bad_index", where=where, hint=AGAIN) from None
    raise DataError(
        f"format {found}, and this vitral reads {FORMAT}",
        code="data.unsupported_version",
        where=where,
        hint=f"update vitral, or {AGAIN}",
    )


def _shard(fields: dict[str, list[str]]) -> Shard:
    columns = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Shard(**columns)  # type: ignore[arg-type]  # the types are checked below, all at once


def _check(index: Index) -> None:
    """Raise ValueError, or the error of the operation that fails, for an index that cannot be true."""
    every: list[str] = []
    for shard in index.shards:
        if os.path.basename(shard.file) != shard.file or shard.file in {"", ".", ".."}:
            raise ValueError(f"the file {shard.file!r} is not beside it")
        if shard.split not in SPLITS:
            raise ValueError(f"the split {shard.split!r}")
        numbers = [*shard.labels, *shard.starts, *shard.lengths, shard.bytes]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"a number of {shard.file} that is not one")
        ends = [start + length for start, length in zip(shard.starts, shard.lengths, strict=True)]
        if len(shard.names) != len(ends) or len(shard.labels) != len(ends):
            raise ValueError(f"columns of {shard.file} that differ in length")
        if max(ends, default=0) > shard.bytes or max(shard.labels, default=0) >= len(index.classes):
            raise ValueError(f"an image of {shard.file} that is outside it, or of no class")
        every += shard.names
    os.fsencode("".join(every))
    if len(set(every)) != len(every) or not every:
        raise ValueError("two images of one name, or none")
