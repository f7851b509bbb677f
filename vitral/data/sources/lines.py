"""Lines of tables and of JSON Lines, each with its number; what is malformed is refused by file and line."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vitral.errors import DataError


def rows_of(
    path: str | Path, lines: Iterable[str], delimiter: str, check: Callable[[list[str]], None]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The fields of each row by their columns, once the header has passed the check; empty rows are none."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        check(header)
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                what = f"expected {len(header)} fields ({', '.join(header)}), found {len(fields)}"
                remedy = f'put a field that has a {delimiter!r} in it between "quotes"'
                raise DataError(what, code="data.bad_manifest", where=f"{path}:{reader.line_num}", remedy=remedy)
            yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise DataError(
            f"not a table: {error}", code="data.bad_manifest", where=where, remedy="close every quote"
        ) from None


def objects_of(path: str | Path, lines: Iterable[str]) -> Iterator[tuple[int, object]]:
    """What each line of JSON says; empty lines are none."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            where = f"{path}:{number}"
            raise DataError(
                f"not JSON: {error}", code="data.bad_manifest", where=where, remedy="write one object a line"
            ) from None
