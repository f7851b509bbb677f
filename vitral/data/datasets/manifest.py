"""A manifest: a CSV, TSV or JSON Lines file with a path, a label and an optional split for each image.

Paths are relative to the manifest and may point outside its folder (`../raw/1.jpg`, `/photos/1.jpg`). Labels are class
names: 7 is the class "7". Other columns are ignored. Errors name the file and the line. For a task without labels, a
manifest may leave the column of labels out.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vitral.core.documents import parse_json
from vitral.core.errors import DataError, did_you_mean, format_choices
from vitral.core.files import outside_error, outside_is_allowed
from vitral.data.datasets.files import FileStore, read_lines, suffix
from vitral.data.samples import (
    SPLIT_ALIASES,
    OnFault,
    Row,
    Samples,
    StratifiedSplit,
    build_samples,
    build_unlabeled,
    format_names,
    refuse,
)


def read_table(
    path: str | Path,
    lines: Iterable[str],
    delimiter: str,
    check: Callable[[list[str]], None],
    on_fault: OnFault = refuse,
) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number and the fields of each row, after `check` has accepted the header; empty rows are skipped."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        check(header)
        for fields in reader:
            if len(fields) == len(header):
                yield reader.line_num, dict(zip(header, fields, strict=True))
            elif fields:
                message = f"expected {len(header)} fields ({', '.join(header)}), found {len(fields)}"
                hint = f'put a field that contains {delimiter!r} in double quotes: "a{delimiter}b"'
                where = f"{path}:{reader.line_num}"
                on_fault(DataError(message, code="data.bad_manifest", where=where, hint=hint))
    except csv.Error as error:
        message, where = f"not a valid table: {error}", f"{path}:{reader.line_num}"
        on_fault(DataError(message, code="data.bad_manifest", where=where, hint="close every quote"))


def read_json_lines(path: str | Path, lines: Iterable[str], on_fault: OnFault = refuse) -> Iterator[tuple[int, object]]:
    """The number and the value of each line of JSON; empty lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            message, where = f"not JSON: {error}", f"{path}:{number}"
            on_fault(DataError(message, code="data.bad_manifest", where=where, hint="write one JSON object per line"))
        else:
            yield number, value


DELIMITERS = {".csv": ",", ".tsv": "\t"}
MANIFEST_SUFFIXES = (*DELIMITERS, ".jsonl", ".ndjson")
REQUIRED = ("path", "label")
COLUMNS = (*REQUIRED, "split")


class Record(NamedTuple):
    """One line of a manifest; the split is empty if none was given."""

    line: int
    path: str
    label: str
    split: str


def open_manifest(path: Path, val_split: StratifiedSplit, on_fault: OnFault = refuse) -> Samples:
    """The images that a manifest lists. If it has no splits, some images of each class are kept for validation."""
    rows = list(_rows(path, _read_records(path, REQUIRED, on_fault), on_fault))
    return build_samples(str(path), rows, FileStore(str(path.parent)), val_split, on_fault=on_fault)


def open_unlabeled_manifest(path: Path, val_split: StratifiedSplit, on_fault: OnFault = refuse) -> Samples:
    """The same of a manifest without labels, as one class without a name."""
    rows = list(_rows(path, _read_records(path, REQUIRED[:1], on_fault), on_fault))
    return build_unlabeled(str(path), rows, FileStore(str(path.parent)), val_split)


def has_labels(path: Path) -> bool:
    """Whether the first line of a manifest has a label, or names a column of them."""
    delimiter, lines = DELIMITERS.get(suffix(path.name)), read_lines(path)
    if delimiter:
        header = next(csv.reader(lines, delimiter=delimiter), [])
        return "label" in {name.strip().lower() for name in header}
    fields = next((fields for _, fields in read_json_lines(path, lines)), None)
    return not isinstance(fields, dict) or "label" in fields


def _read_records(path: Path, required: Sequence[str], on_fault: OnFault) -> list[Record]:
    """The lines of a manifest whose files exist."""
    lines = read_lines(path)
    delimiter = DELIMITERS.get(suffix(path.name))
    if delimiter:
        records = list(_from_table(path, lines, delimiter, required, on_fault))
    else:
        records = list(_from_json(path, lines, required, on_fault))
    if not records:
        hint = f"write a line with a {' and a '.join(required)} for each image"
        on_fault(DataError("lists no images", code="data.empty", where=path, hint=hint))
    return _existing(path, records, on_fault)


def _from_table(
    path: Path, lines: Iterable[str], delimiter: str, required: Sequence[str], on_fault: OnFault
) -> Iterator[Record]:
    def check(header: list[str]) -> None:
        _check_header(path, header, delimiter, required)

    for number, fields in read_table(path, lines, delimiter, check, on_fault):
        yield from _record(path, number, fields, required, on_fault)


def _check_header(path: Path, header: list[str], delimiter: str, required: Sequence[str]) -> None:
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"no column {format_choices(missing)} in the header {delimiter.join(header)!r}",
            code="data.bad_manifest",
            where=path,
            hint=f"name the columns in the first line: {delimiter.join(required)}, and optionally split",
        )
    repeated = [name for name, times in Counter(header).items() if name in COLUMNS and times > 1]
    if repeated:
        message, hint = f"two columns are named {repeated[0]!r}", "rename one of them"
        raise DataError(message, code="data.bad_manifest", where=path, hint=hint)
    if meant := _misspelled(header):
        raise _unknown_column(str(path), *meant)


def _misspelled(names: Iterable[str]) -> tuple[str, str] | None:
    """A column whose name is nearly `split`, which would be ignored by mistake, and a hint."""
    others = set(names)
    for name in sorted(others.difference(COLUMNS)):
        meant = did_you_mean(name, ["split"])
        if meant and "split" not in others:
            return name, meant
    return None


def _unknown_column(where: str, name: str, hint: str) -> DataError:
    return DataError(f"unknown column {name!r}", code="data.bad_manifest", where=where, hint=hint)


def _from_json(path: Path, lines: Iterable[str], required: Sequence[str], on_fault: OnFault) -> Iterator[Record]:
    for number, fields in read_json_lines(path, lines, on_fault):
        fault = _json_fault(f"{path}:{number}", fields, required)
        if fault:
            on_fault(fault)
            continue
        assert isinstance(fields, dict)
        yield from _record(
            path, number, {name: str(fields[name]) for name in COLUMNS if name in fields}, required, on_fault
        )


def _json_fault(where: str, fields: object, required: Sequence[str]) -> DataError | None:
    """What is wrong with the value of a line, if anything."""
    if not isinstance(fields, dict) or any(name not in fields for name in required):
        message, hint = f"has no {format_choices(required)}", 'write {"path": "cat/1.jpg", "label": "cat"}'
        return DataError(message, code="data.bad_manifest", where=where, hint=hint)
    if meant := _misspelled(fields):
        return _unknown_column(where, *meant)
    for name in COLUMNS:
        value = fields.get(name, "")
        numeric = name == "label" and isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, str) and not numeric:
            message, hint = f"{name}: expected text, got {json.dumps(value)[:60]}", "write one text in quotes"
            return DataError(message, code="data.bad_manifest", where=where, hint=hint)
    return None


def _record(
    path: Path, line: int, fields: dict[str, str], required: Sequence[str], on_fault: OnFault
) -> Iterator[Record]:
    """The record of a line, if it is complete. The path is kept as it is; label and split are stripped of spaces."""
    label = fields["label"].strip() if "label" in required else ""
    record = Record(line, fields["path"], label, fields.get("split", "").strip())
    empty = [name for name in required if not getattr(record, name)]
    for name in empty:
        message, hint = f"the {name} is empty", "fill it in, or remove the line"
        on_fault(DataError(message, code="data.bad_manifest", where=f"{path}:{line}", hint=hint))
    if not empty:
        yield record


def _existing(path: Path, records: list[Record], on_fault: OnFault) -> list[Record]:
    """The records whose files exist, each file once."""
    lines: dict[str, int] = {}
    missing: list[str] = []
    existing: list[Record] = []
    allowed, folder = outside_is_allowed(), str(path.parent)
    for record in records:
        if not allowed and (error := outside_error(record.path, folder, f"{path}:{record.line}")):
            on_fault(error)
            continue
        address = os.path.normpath(os.path.join(path.parent, record.path))
        if address in lines:
            message, hint = f"{record.path} is already on line {lines[address]}", "remove one of the two lines"
            on_fault(DataError(message, code="data.bad_manifest", where=f"{path}:{record.line}", hint=hint))
            continue
        lines[address] = record.line
        if os.path.isfile(address):
            existing.append(record)
        else:
            missing.append(record.path)
    if missing:
        message = f"{len(missing)} of {len(records)} files are missing: {format_names(missing)}"
        slashes = " with / between folders" if any("\\" in name for name in missing) else ""
        hint = f"restore the files, or remove their lines; paths are relative to {path.parent}{slashes}"
        on_fault(DataError(message, code="data.missing_file", where=path, hint=hint))
    return existing


def _rows(path: Path, records: list[Record], on_fault: OnFault) -> Iterator[Row]:
    divided = any(record.split for record in records)
    for record in records:
        word = record.split.lower() if divided else "train"
        if word in SPLIT_ALIASES:
            yield Row(record.path, record.label, SPLIT_ALIASES[word])
            continue
        message = f"split: expected {format_choices(SPLIT_ALIASES)}, got {record.split!r}"
        hint = did_you_mean(word, SPLIT_ALIASES) or "give every line a split, or none of them"
        on_fault(DataError(message, code="data.bad_split", where=f"{path}:{record.line}", hint=hint))
