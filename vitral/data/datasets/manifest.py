"""A manifest: a CSV, TSV or JSON Lines file with a path, a label and perhaps a split for each image.

Paths are relative to the manifest and may lead out of its folder (`../raw/1.jpg`, `/photos/1.jpg`). Labels are class
names, so 7 is the class called "7". Other columns are ignored. Errors name the file and the line.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import DataError, did_you_mean, format_choices
from vitral.data.datasets.files import FileStore, suffix, unreadable
from vitral.data.samples import SPLIT_ALIASES, Row, Samples, StratifiedSplit, build_samples, format_names


def read_table(
    path: str | Path, lines: Iterable[str], delimiter: str, check: Callable[[list[str]], None]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number and the fields of each row, after `check` has accepted the header; empty rows are skipped."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        check(header)
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                message = f"expected {len(header)} fields ({', '.join(header)}), found {len(fields)}"
                hint = f'put a field that has a {delimiter!r} in it between "quotes"'
                raise DataError(message, code="data.bad_manifest", where=f"{path}:{reader.line_num}", hint=hint)
            yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise DataError(
            f"not a table: {error}", code="data.bad_manifest", where=where, hint="close every quote"
        ) from None


def read_json_lines(path: str | Path, lines: Iterable[str]) -> Iterator[tuple[int, object]]:
    """The number and the value of each line of JSON; empty lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            where = f"{path}:{number}"
            raise DataError(
                f"not JSON: {error}", code="data.bad_manifest", where=where, hint="write one object a line"
            ) from None


DELIMITERS = {".csv": ",", ".tsv": "\t"}
MANIFEST_SUFFIXES = (*DELIMITERS, ".jsonl", ".ndjson")
REQUIRED = ("path", "label")
COLUMNS = (*REQUIRED, "split")


class Record(NamedTuple):
    """One line of a manifest; an empty split was not given."""

    line: int
    path: str
    label: str
    split: str


def open_manifest(path: Path, val_split: StratifiedSplit) -> Samples:
    """The images that a manifest lists; if it has no splits, some are set aside for validation."""
    text = _text(path)
    delimiter = DELIMITERS.get(suffix(path.name))
    records = list(_from_table(path, text, delimiter) if delimiter else _from_json(path, text))
    if not records:
        raise DataError(
            "lists no images", code="data.empty", where=path, hint="write a line with a path and a label for each"
        )
    _check_paths(path, records)
    return build_samples(str(path), _rows(path, records), FileStore(str(path.parent)), val_split)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}"
        raise DataError(message, code="data.bad_manifest", where=path, hint="save it as UTF-8") from None


def _from_table(path: Path, text: str, delimiter: str) -> Iterator[Record]:
    def check(header: list[str]) -> None:
        _check_header(path, header, delimiter)

    for number, fields in read_table(path, StringIO(text, newline=""), delimiter, check):
        yield _record(path, number, fields)


def _check_header(path: Path, header: list[str], delimiter: str) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise DataError(
            f"no column {format_choices(missing)} in the header, which is {delimiter.join(header)!r}",
            code="data.bad_manifest",
            where=path,
            hint=f"let the first line name the columns: {delimiter.join(REQUIRED)} and, if you like, split",
        )
    repeated = [name for name, times in Counter(header).items() if name in COLUMNS and times > 1]
    if repeated:
        raise DataError(
            f"two columns are called {repeated[0]!r}", code="data.bad_manifest", where=path, hint="rename one"
        )
    _check_misspelled(str(path), header)


def _check_misspelled(where: str, names: Iterable[str]) -> None:
    """Refuse a column whose name is nearly `split`: it must not be ignored by mistake."""
    others = set(names)
    for name in sorted(others.difference(COLUMNS)):
        meant = did_you_mean(name, ["split"])
        if meant and "split" not in others:
            raise DataError(f"unknown column {name!r}", code="data.bad_manifest", where=where, hint=meant)


def _from_json(path: Path, text: str) -> Iterator[Record]:
    for number, fields in read_json_lines(path, text.split("\n")):
        where = f"{path}:{number}"
        if not isinstance(fields, dict) or any(name not in fields for name in REQUIRED):
            example = '{"path": "cat/1.jpg", "label": "cat"}'
            raise DataError(
                f"no {format_choices(REQUIRED)} in it", code="data.bad_manifest", where=where, hint=f"write {example}"
            )
        _check_misspelled(where, fields)
        for name in COLUMNS:
            value = fields.get(name, "")
            numeric = name == "label" and isinstance(value, int | float) and not isinstance(value, bool)
            if not isinstance(value, str) and not numeric:
                raise DataError(
                    f"{name}: expected text, got {json.dumps(value)[:60]}",
                    code="data.bad_manifest",
                    where=where,
                    hint="write one text in quotes",
                )
        yield _record(path, number, {name: str(fields[name]) for name in COLUMNS if name in fields})


def _record(path: Path, line: int, fields: dict[str, str]) -> Record:
    """A path is kept as it is; spaces around a label or a split are stripped."""
    record = Record(line, fields["path"], fields["label"].strip(), fields.get("split", "").strip())
    for name in REQUIRED:
        if not getattr(record, name):
            raise DataError(
                f"the {name} is empty",
                code="data.bad_manifest",
                where=f"{path}:{line}",
                hint="fill it in or remove the line",
            )
    return record


def _check_paths(path: Path, records: list[Record]) -> None:
    lines: dict[str, int] = {}
    missing: list[str] = []
    for record in records:
        address = os.path.normpath(os.path.join(path.parent, record.path))
        if address in lines:
            message = f"{record.path} is on line {lines[address]} already"
            raise DataError(
                message, code="data.bad_manifest", where=f"{path}:{record.line}", hint="remove one of the two lines"
            )
        lines[address] = record.line
        if not os.path.isfile(address):
            missing.append(record.path)
    if missing:
        slashes = " with / between folders" if any("\\" in name for name in missing) else ""
        raise DataError(
            f"{len(missing)} of {len(records)} files are missing: {format_names(missing)}",
            code="data.missing_file",
            where=path,
            hint=f"put them back, or remove their lines; paths are relative to {path.parent}{slashes}",
        )


def _rows(path: Path, records: list[Record]) -> Iterator[Row]:
    divided = any(record.split for record in records)
    for record in records:
        word = record.split.lower() if divided else "train"
        if word not in SPLIT_ALIASES:
            found = f"split: expected {format_choices(SPLIT_ALIASES)}, got {record.split!r}"
            hint = did_you_mean(word, SPLIT_ALIASES) or "give every line a split, or none of them"
            raise DataError(found, code="data.bad_split", where=f"{path}:{record.line}", hint=hint)
        yield Row(record.path, record.label, SPLIT_ALIASES[word])
