"""Paths that stand in a manifest or come on stdin, one at a time however many there are.

A manifest is a CSV or TSV file with a column `path`, or JSON Lines with a field `path`; what else it holds is left
alone. Paths in it are relative to it.
"""

import json
import os
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from vitral.data.sources.files import suffix, unreadable
from vitral.data.sources.lines import objects_of, rows_of
from vitral.data.sources.manifest import DELIMITERS
from vitral.errors import DataError

COLUMN = "path"


def paths_in(manifest: str) -> Iterator[str]:
    """The path of each image that a manifest lists, in its order."""
    folder, empty = os.path.dirname(manifest), True
    try:
        with open(manifest, encoding="utf-8-sig", newline="") as file:
            delimiter = DELIMITERS.get(suffix(manifest))
            for path in _from_table(manifest, file, delimiter) if delimiter else _from_json(manifest, file):
                empty = False
                yield os.path.join(folder, path)
    except OSError as error:
        raise unreadable(manifest, error) from None
    except UnicodeDecodeError:
        raise DataError("not UTF-8", code="data.bad_manifest", where=manifest, remedy="save it as UTF-8") from None
    if empty:
        raise DataError(
            "lists no images", code="data.empty", where=manifest, remedy=f"write a line with a {COLUMN} for each"
        )


def paths_on(stream: BinaryIO) -> Iterator[str]:
    """The path on each line of a stream, to the letter; empty lines are none."""
    for line in stream:
        path = os.fsdecode(line.rstrip(b"\r\n"))
        if path:
            yield path


def _from_table(manifest: str, file: TextIO, delimiter: str) -> Iterator[str]:
    def check(header: list[str]) -> None:
        if header.count(COLUMN) != 1:
            what = f"expected one column {COLUMN!r} in the header, which is {delimiter.join(header)!r}"
            raise DataError(
                what, code="data.bad_manifest", where=manifest, remedy="let the first line name the columns"
            )

    for number, fields in rows_of(manifest, file, delimiter, check):
        yield _told(fields[COLUMN], f"{manifest}:{number}")


def _from_json(manifest: str, file: TextIO) -> Iterator[str]:
    for number, fields in objects_of(manifest, file):
        yield _told(fields.get(COLUMN) if isinstance(fields, dict) else fields, f"{manifest}:{number}")


def _told(path: object, where: str) -> str:
    if not isinstance(path, str) or not path:
        found = json.dumps(path)[:60]
        raise DataError(
            f"{COLUMN}: expected text, got {found}",
            code="data.bad_manifest",
            where=where,
            remedy='write {"path": "cat/1.jpg"}',
        )
    return path
