"""Samples: the dataset type that every source gives, how it is built from labeled rows, and its split.

In order: packed names, the types, class labels from names, the split into training and validation, and `split.csv`.
"""

import csv
import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import groupby
from math import floor
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, NoReturn, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.core.config import Config
from vitral.core.errors import DataError
from vitral.core.storage import write_file_atomically


@dataclass(frozen=True)
class PackedNames:
    """Strings packed into one array: a million Python strings would be copied into the memory of every worker."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, names: Iterable[str]) -> "PackedNames":
        """The names in the order given."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self.encoded(index))

    def encoded(self, index: int) -> bytes:
        """The name in the encoding of the file system."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self.ends[index - 1] if index else 0
        return self.data[start : self.ends[index]].tobytes()


Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

# What people call the splits, in folder names and in manifests.
SPLIT_ALIASES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


class Item(NamedTuple):
    """One labeled image: its name as messages show it (`cats/07.jpg`), and its label as an index of the classes."""

    name: str
    label: int
    split: Split


class Row(NamedTuple):
    """An item with the name of its class: what a source lists and what `split.csv` records."""

    name: str
    label: str
    split: Split


class Store(Protocol):
    """Where the bytes of images are. It is sent to worker processes, so it holds addresses and no open files."""

    def read(self, name: str) -> bytes:
        """The encoded image."""
        ...

    def address(self, name: str) -> str:
        """Its location for messages: a path if there is one."""
        ...

    def size(self, name: str) -> int:
        """The number of bytes that `read` would return."""
        ...


@dataclass(frozen=True, repr=False)
class Samples:
    """A dataset: classes in the order of their labels, items sorted by split and name."""

    where: str
    classes: tuple[str, ...]
    items: tuple[Item, ...]
    store: Store
    notes: tuple[str, ...] = ()  # what a user should know before training: skipped files, a class not in val
    divided: bool = False  # split here, by a seed: the dataset has no split of its own
    numbered: bool = False  # its classes are numbered as in all models of it, which may name them otherwise
    # The labels of each image by name, of which any is right; empty if each has the one of its item.
    label_sets: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return f"Samples({self.where!r}: {len(self.items):,} images of {len(self.classes):,} classes)"

    def of(self, split: Split) -> tuple[Item, ...]:
        """The items of one split, in order."""
        return tuple(item for item in self.items if item.split == split)

    def read(self, item: Item) -> bytes:
        """The encoded image, for the decoder."""
        return self.store.read(item.name)

    def counts(self, split: Split) -> tuple[int, ...]:
        """The number of images of each class in the split, in the order of the classes."""
        found = Counter(item.label for item in self.items if item.split == split)
        return tuple(found[label] for label in range(len(self.classes)))

    def rows(self) -> Iterator[Row]:
        """Each item with the name of its class."""
        return (Row(item.name, self.classes[item.label], item.split) for item in self.items)

    def fingerprint(self) -> str:
        """A hash of all names, labels, splits and sizes; it depends neither on pixels nor on the dataset's location."""
        found = hashlib.sha256()
        for row in self.rows():
            fields = (*row, str(self.store.size(row.name)))
            found.update(b"\0".join(map(os.fsencode, fields)) + b"\n")
        return found.hexdigest()


class StratifiedSplit(Config):
    """A fraction of every class for validation, drawn from the seed and the names alone."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: int = 0


MAX_NAMES = 5  # of a long list, in a message


def format_names(names: Sequence[str], most: int = MAX_NAMES) -> str:
    """The first few names and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# Called with each structural fault of a dataset. If it returns, the source goes on without the faulty part.
OnFault = Callable[[DataError], object]


def refuse(fault: DataError) -> NoReturn:
    """Raise the first fault, since training needs data without any; a check collects them: `faults.append`."""
    raise fault


def build_samples(
    where: str,
    found: Iterable[Row],
    store: Store,
    val_split: StratifiedSplit,
    notes: Sequence[str] = (),
    on_fault: OnFault = refuse,
) -> Samples:
    """The samples of the rows. If all rows are for training, they are split here; otherwise they keep their splits."""
    rows = sorted((row._replace(label=normalize_unicode(row.label)) for row in found), key=by_split_and_name)
    _check_ambiguous_classes(where, {row.label: row.name for row in reversed(rows)}, on_fault)
    classes = tuple(sorted({row.label for row in rows}))
    _check_classes(where, classes, rows, on_fault)
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


def build_unlabeled(where: str, rows: Sequence[Row], store: Store, val_split: StratifiedSplit) -> Samples:
    """The samples of images without labels, as one class without a name. Rows that are all of train are split here."""
    rows = sorted(rows, key=by_split_and_name)
    divided = all(row.split == "train" for row in rows)
    if divided:
        rows, _ = stratified_split(rows, val_split)
    note = f"{val_split.fraction:.0%} of the images are kept for validation (seed {val_split.seed})"
    items = tuple(Item(row.name, 0, row.split) for row in rows)
    return Samples(where, ("",), items, store, (note,) if divided else (), divided=divided)


def reorder_classes(samples: Samples, order: Iterable[str], keep_empty: bool) -> Samples:
    """The samples with their classes in this order, unchanged if it is empty; a note names classes without images."""
    classes = tuple(map(normalize_unicode, order))
    empty = [name for name in classes if name not in samples.classes]
    note = f"{'no images at all' if keep_empty else 'no images, so not among the classes'}: {format_names(empty)}"
    classes = classes if keep_empty else tuple(name for name in classes if name in samples.classes)
    label = {name: number for number, name in enumerate(classes or samples.classes)}
    items = tuple(item._replace(label=label[samples.classes[item.label]]) for item in samples.items)
    return replace(samples, classes=tuple(label), items=items, notes=(*samples.notes, *([note] if empty else [])))


def normalize_unicode(name: str) -> str:
    """The class name in composed form (NFC): file systems differ in how they store an accent."""
    return unicodedata.normalize("NFC", name)


def _check_ambiguous_classes(where: str, examples: dict[str, str], on_fault: OnFault) -> None:
    """Find classes such as Cat and cat, given an image of each."""
    ordered = sorted(examples, key=lambda name: (name.casefold(), name))
    for _, group in groupby(ordered, key=str.casefold):
        first, *others = group
        for other in others:
            message = f"classes {first!r} and {other!r} differ only in case ({examples[first]}, {examples[other]})"
            hint = "use the same name if they are one class, otherwise use distinct names"
            on_fault(DataError(message, code="data.ambiguous_class", where=where, hint=hint))


def _missing_classes(classes: tuple[str, ...], rows: Sequence[Row]) -> list[str]:
    """A note for each split that lacks some of the classes."""
    held = {split: {row.label for row in rows if row.split == split} for split in SPLITS}
    missing = {split: [name for name in classes if name not in names] for split, names in held.items() if names}
    return [f"no images in {split}: {format_names(names)}" for split, names in missing.items() if names]


def _check_classes(where: str, classes: tuple[str, ...], rows: Sequence[Row], on_fault: OnFault) -> None:
    """Find classes that are not in train (the first, if train has no images at all), and datasets of one class."""
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError:
            message, hint = f"class {name!a} has bytes in its name that are not UTF-8", "rename it"
            on_fault(DataError(message, code="data.bad_class_name", where=where, hint=hint))
    in_train = {row.label for row in rows if row.split == "train"}
    for name in classes if in_train else classes[:1]:
        if name not in in_train:
            images = [row for row in rows if row.label == name]
            split = images[0].split
            message = f"class {name!r} is in {split} but not in train ({format_names([row.name for row in images])})"
            hint = f"add images of it to train, or remove it from {split}"
            on_fault(DataError(message, code="data.class_not_in_train", where=where, hint=hint))
    if len(classes) == 1:
        hint = (
            "a classifier needs two or more classes, one folder or label for each; "
            "to train without labels: --task masked_patches"
        )
        on_fault(DataError(f"only one class, {classes[0]!r}", code="data.too_few", where=where, hint=hint))


def stratified_split(rows: Iterable[Row], val_split: StratifiedSplit) -> tuple[list[Row], list[str]]:
    """The rows as train and val, and the classes whose only image stays in train; larger classes have images in both.

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
    return sorted(divided, key=by_split_and_name), singletons


def by_split_and_name(row: Row | Item) -> tuple[int, str]:
    """A sort key for the order of items in a dataset, independent of the file system and of manifests."""
    return SPLITS.index(row.split), row.name


def _draw(name: str, seed: int) -> bytes:
    return hashlib.blake2b(os.fsencode(f"{seed}\0{normalize_unicode(name)}"), digest_size=16).digest()


def write_split(path: Path, rows: Iterable[Row]) -> None:
    """Write `name,label,split` for each row, atomically."""
    text = StringIO(newline="")
    csv.writer(text).writerows([Row._fields, *rows])
    write_file_atomically(path, text.getvalue().encode("utf-8", errors="surrogateescape"))
