"""Data sets of Hugging Face that are on disk: Parquet or Arrow files with a column of images and one of labels."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitral.data.samples import Row, Samples
from vitral.data.sources.columns import Columns, choose_columns
from vitral.data.sources.hub_files import Found, TableFile, find_tables
from vitral.data.sources.labels import composed, listed, samples_of
from vitral.data.sources.split import Stratified
from vitral.data.sources.tables import Cells, read_column, read_schema
from vitral.errors import DataError


def open_hub(path: Path, how: Stratified) -> Samples:
    """The images of a folder of tables, or of one table, all of which are then for training."""
    alone = path.is_file()
    root = path.parent if alone else path
    files, notes = Found([TableFile(path.name, "train")], []) if alone else find_tables(path)
    columns = _columns(root, files)
    labels = [read_column(str(root / file.name), columns.label) for file in files]
    rows = [
        Row(f"{file.name}#{number:07}", _class(value, columns.classes, f"{root / file.name}#{number}"), file.split)
        for file, values in zip(files, labels, strict=True)
        for number, value in enumerate(values)
    ]
    if not rows:
        raise DataError("holds no rows", code="data.empty", where=str(path), remedy="give a set with images in it")
    samples = samples_of(str(path), rows, Cells(str(root), columns.image), how, notes)
    return _in_order(samples, columns.classes or _counted(value for values in labels for value in values))


def _columns(root: Path, files: list[TableFile]) -> Columns:
    """The columns, which must be the same in every file."""
    found = [choose_columns(read_schema(str(root / file.name)), str(root / file.name)) for file in files]
    for file, columns in zip(files, found, strict=True):
        if columns != found[0]:
            raise DataError(
                f"its columns or classes are not those of {files[0].name}",
                code="data.schema_mismatch",
                where=str(root / file.name),
                remedy="let all files have the same columns of images and labels, and the same classes",
            )
    return found[0]


def _class(value: Any, classes: tuple[str, ...], where: str) -> str:
    """The name of the class that a label stands for."""
    if value is None or value == "":
        raise DataError(
            "no label in this row", code="data.bad_label", where=where, remedy="remove the row, or give it a label"
        )
    if not classes:
        return str(value)
    if not isinstance(value, int) or not 0 <= value < len(classes):
        what = f"label {value!r} is none of the {len(classes)} classes"
        raise DataError(
            what, code="data.bad_label", where=where, remedy="remove the row, or the file if it has no labels"
        )
    return classes[value]


def _counted(values: Iterable[Any]) -> tuple[str, ...]:
    """Labels that are mere numbers in the order of numbers, which is not that of their names: 2 before 10."""
    distinct = set(values)
    return tuple(map(str, sorted(distinct))) if all(isinstance(value, int) for value in distinct) else ()


def _in_order(samples: Samples, order: tuple[str, ...]) -> Samples:
    """The samples with their classes numbered in that order; as they are where it is empty."""
    names = [composed(name) for name in order]
    classes = tuple(name for name in names if name in samples.classes)
    if not classes:
        return samples
    number = {name: label for label, name in enumerate(classes)}
    items = tuple(item._replace(label=number[samples.classes[item.label]]) for item in samples.items)
    unseen = [name for name in names if name not in number]
    notes = (*samples.notes, f"no images, so not among the classes: {listed(unseen)}") if unseen else samples.notes
    return replace(samples, classes=classes, items=items, notes=notes)
