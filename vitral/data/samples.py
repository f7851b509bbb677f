"""Samples: the dataset type that every source gives, its items and splits, and the store of its bytes."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray


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
        """The name as its file system has it."""
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
    """One labeled image: its name as a message shows it (`cats/07.jpg`), and its label as an index of the classes."""

    name: str
    label: int
    split: Split


class Row(NamedTuple):
    """An item before its label has a number: how a source finds it and how `split.csv` keeps it."""

    name: str
    label: str
    split: Split


class Store(Protocol):
    """Where the bytes of images are. It goes to worker processes, so it holds addresses and no open files."""

    def read(self, name: str) -> bytes:
        """The encoded image."""
        ...

    def address(self, name: str) -> str:
        """Where a person finds it, as a message says: a path where there is one."""
        ...

    def size(self, name: str) -> int:
        """How many bytes `read` would give."""
        ...


@dataclass(frozen=True, repr=False)
class Samples:
    """A data set: classes in the order of their labels, items in the order of splits and names."""

    where: str
    classes: tuple[str, ...]
    items: tuple[Item, ...]
    store: Store
    notes: tuple[str, ...] = ()  # what a user should know before training: files left out, a class not in val
    divided: bool = False  # here, by a seed: the set came without a split of its own

    def __repr__(self) -> str:
        return f"Samples({self.where!r}: {len(self.items):,} images of {len(self.classes):,} classes)"

    def of(self, split: Split) -> tuple[Item, ...]:
        """The items of one split, in order."""
        return tuple(item for item in self.items if item.split == split)

    def read(self, item: Item) -> bytes:
        """The encoded image, for the decoder."""
        return self.store.read(item.name)

    def counts(self, split: Split) -> tuple[int, ...]:
        """How many images of each class the split holds, in the order of the classes."""
        found = Counter(item.label for item in self.items if item.split == split)
        return tuple(found[label] for label in range(len(self.classes)))

    def rows(self) -> Iterator[Row]:
        """Each item with the name of its class."""
        return (Row(item.name, self.classes[item.label], item.split) for item in self.items)

    def fingerprint(self) -> str:
        """A hash of every name, label, split and size; not of the pixels, nor of where the set lies."""
        found = hashlib.sha256()
        for row in self.rows():
            fields = (*row, str(self.store.size(row.name)))
            found.update(b"\0".join(map(os.fsencode, fields)) + b"\n")
        return found.hexdigest()
