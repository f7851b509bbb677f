"""MNIST and Fashion-MNIST as they are published: idx files, plain or with gzip.

An idx file is two zeros, the type of the values (8: bytes), the number of sides, each side in four bytes, the values.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitral.data.sources.arrays import Array, Part, checked
from vitral.data.sources.files import read_bytes
from vitral.errors import DataError

PREFIXES = {"train": "train", "test": "t10k"}
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
CLASSES = 10


@dataclass(frozen=True)
class Idx:
    """The reader of a folder with the four files."""

    folder: str

    @classmethod
    def find(cls, folder: Path) -> "Idx | None":
        """The reader, if the images to train on are in the folder."""
        there = any((folder / f"train-{IMAGES}{ending}").is_file() for ending in ("", ".gz"))
        return cls(str(folder)) if there else None

    def load(self, part: str) -> Part:
        images, labels = (_either(Path(self.folder, f"{PREFIXES[part]}-{what}")) for what in (IMAGES, LABELS))
        return checked(read_idx(images, 3), read_idx(labels, 1), CLASSES, str(images), str(labels))


def read_idx(path: Path, sides: int) -> Array:
    """The array of so many sides in an idx file of bytes, unpacked where the name ends in `.gz`."""
    data = read_packed(path) if path.suffix == ".gz" else read_bytes(path)
    head = 4 + 4 * sides
    if data[:4] != bytes([0, 0, 8, sides]) or len(data) < head:
        what = f"expected an idx file of bytes with {sides} sides, found one that begins {data[:4].hex(' ')!r}"
        raise DataError(what, code="data.bad_archive", where=str(path), remedy="fetch it again")
    shape = np.frombuffer(data, ">u4", count=sides, offset=4).tolist()
    promised = head + int(np.prod(shape, dtype=object))
    if len(data) != promised:
        what = f"its header promises {promised} bytes, found {len(data)}"
        raise DataError(what, code="data.bad_archive", where=str(path), remedy="fetch it again")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def read_packed(path: Path) -> bytes:
    """What is in a file packed with gzip."""
    try:
        return gzip.decompress(read_bytes(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"not a whole gzip file: {error}", code="data.bad_archive", where=str(path), remedy="fetch it again"
        ) from None


def _either(path: Path) -> Path:
    """The file as it is or packed; one of the two must be there."""
    packed = path.with_name(f"{path.name}.gz")
    found = next((file for file in (path, packed) if file.is_file()), None)
    if found is None:
        what = f"{path.name} (or {packed.name}) is missing beside the other files of the set"
        raise DataError(
            what, code="data.missing_file", where=str(path.parent), remedy="put it there, or unpack the whole set again"
        )
    return found
