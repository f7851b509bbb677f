"""Class names to numeric labels: from rows of a source to `Samples`."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from vitral.core.errors import DataError
from vitral.data.datasets.split import StratifiedSplit, by_split_and_name, stratified_split
from vitral.data.samples import SPLITS, Item, Row, Samples, Store

MAX_NAMES = 5  # of a long list, in a message


def build_samples(
    where: str, found: Iterable[Row], store: Store, val_split: StratifiedSplit, notes: Sequence[str] = ()
) -> Samples:
    """The samples of the rows. Rows that are all for training are divided; others keep the split they have."""
    rows: Sequence[Row] = sorted(
        (row._replace(label=normalize_unicode(row.label)) for row in found), key=by_split_and_name
    )
    check_ambiguous_classes(where, {row.label: row.name for row in reversed(rows)})
    classes = tuple(sorted({row.label for row in rows}))
    _check_classes(where, classes, rows)
    undivided = all(row.split == "train" for row in rows)
    if undivided:
        rows, singletons = stratified_split(rows, val_split)
        if len(singletons) < len(classes):
            notes = [*notes, f"{val_split.fraction:.0%} of every class is kept for validation (seed {val_split.seed})"]
        if singletons:
            notes = [*notes, f"one image only, so none for validation: {format_names(singletons)}"]
    else:
        notes = [*notes, *_missing_classes(classes, rows)]
    label = {name: number for number, name in enumerate(classes)}
    items = tuple(Item(row.name, label[row.label], row.split) for row in rows)
    return Samples(where, classes, items, store, tuple(notes), divided=undivided)


def renumber_classes(samples: Samples, classes: tuple[str, ...], notes: Sequence[str] = ()) -> Samples:
    """The same samples with their classes in this order, and further notes."""
    label = {name: number for number, name in enumerate(classes)}
    items = tuple(item._replace(label=label[samples.classes[item.label]]) for item in samples.items)
    return replace(samples, classes=classes, items=items, notes=(*samples.notes, *notes))


def normalize_unicode(name: str) -> str:
    """The class name in one spelling: file systems differ in how they store an accent."""
    return unicodedata.normalize("NFC", name)


def check_ambiguous_classes(where: str, examples: dict[str, str]) -> None:
    """Refuse classes such as Cat and cat, given an image (or a folder) of each."""
    ordered = sorted(examples, key=lambda name: (name.casefold(), name))
    for _, group in groupby(ordered, key=str.casefold):
        alike = list(group)
        if len(alike) > 1:
            first, second = alike[:2]
            raise DataError(
                f"classes {first!r} and {second!r} differ only in case ({examples[first]}, {examples[second]})",
                code="data.ambiguous_class",
                where=where,
                hint="give both the same name if they are one class, else names that differ",
            )


def format_names(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _missing_classes(classes: tuple[str, ...], rows: Sequence[Row]) -> list[str]:
    """A note for each split that lacks some of the classes."""
    held = {split: {row.label for row in rows if row.split == split} for split in SPLITS}
    missing = {split: [name for name in classes if name not in names] for split, names in held.items() if names}
    return [f"no images in {split}: {format_names(names)}" for split, names in missing.items() if names]


def _check_classes(where: str, classes: tuple[str, ...], rows: Sequence[Row]) -> None:
    in_train = {row.label for row in rows if row.split == "train"}
    for name in classes:
        if name not in in_train:
            images = [row for row in rows if row.label == name]
            split = images[0].split
            raise DataError(
                f"class {name!r} is in {split} and not in train ({format_names([row.name for row in images])})",
                code="data.class_not_in_train",
                where=where,
                hint=f"add images of it to train, or remove it from {split}",
            )
    if len(classes) == 1:
        raise DataError(
            f"only one class, {classes[0]!r}",
            code="data.too_few",
            where=where,
            hint="there must be two or more to tell apart: one folder or label for each",
        )
