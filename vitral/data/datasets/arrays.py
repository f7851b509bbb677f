"""Datasets of small images in a few large arrays; and the idx files of MNIST and Fashion-MNIST, plain or gzipped."""

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitral.core.errors import DataError
from vitral.core.files import IMAGE_BYTES
from vitral.data.datasets.files import read_bytes
from vitral.data.samples import Item, Samples, Split

Array = NDArray[np.uint8]
PARTS: tuple[Split, ...] = ("train", "test")
AGAIN = "download it again"


class LabeledImages(NamedTuple):
    """Images, (images, H, W) or (images, H, W, 3), and the class index of each."""

    images: Array
    labels: Array


class Reader(Protocol):
    """Loads a part of a dataset. A frozen value: it is sent to other processes, and equal ones load the same."""

    def load(self, part: str) -> LabeledImages: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class ArrayStore:
    """A store whose names, such as `train/0000.npy`, are the part and the row. Every process loads a part once."""

    where: str
    reader: Reader

    def read(self, name: str) -> bytes:
        """The image as a `.npy` file."""
        return npy_bytes(self._image(name))

    def address(self, name: str) -> str:
        return f"{self.where}: {name}"

    def size(self, name: str) -> int:
        image = self._image(name)
        return len(_header(image.shape)) + image.nbytes

    def rows(self, names: Iterable[str]) -> tuple[Array, NDArray[np.int64]] | None:
        """All images of a part, (images, H, W, C), and the row of each name; None if the names are of two parts."""
        found = [_parse_name(name) for name in names]
        if len({part for part, _ in found}) != 1:
            return None
        images = load_once(self.reader, found[0][0]).images
        return images if images.ndim == 4 else images[..., None], np.array([row for _, row in found])

    def _image(self, name: str) -> Array:
        part, row = _parse_name(name)
        return load_once(self.reader, part).images[row]


def _parse_name(name: str) -> tuple[str, int]:
    """The part and the row of a name."""
    part, _, number = name.removesuffix(".npy").rpartition("/")
    return part, int(number)


@cache
def load_once(reader: Reader, part: str) -> LabeledImages:
    """The part that the reader loads, read-only and kept for the life of the process."""
    found = reader.load(part)
    for array in found:
        array.setflags(write=False)
    return found


def list_items(reader: Reader, part: str, split: Split) -> list[Item]:
    """An item for each image of the part."""
    labels = load_once(reader, part).labels.tolist()
    digits = max(4, len(str(len(labels) - 1)))  # so that names sort like numbers
    return [Item(f"{part}/{number:0{digits}}.npy", label, split) for number, label in enumerate(labels)]


def open_arrays(where: str, classes: tuple[str, ...], reader: Reader, notes: tuple[str, ...] = ()) -> Samples:
    """The samples of a reader with a part for training and one for testing."""
    items = tuple(item for part in PARTS for item in list_items(reader, part, part))
    return Samples(where, classes, items, ArrayStore(where, reader), notes)


def check_labels(
    images: Array, labels: NDArray[np.integer[Any]], classes: int, images_file: str, labels_file: str
) -> LabeledImages:
    """Images and labels; every image must have a label, and every label a class."""
    if not len(images) or len(images) != len(labels):
        message = f"{len(labels)} labels for the {len(images)} images in {images_file}"
        raise DataError(message, code="data.count_mismatch", where=labels_file, hint="download both files again")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        message = f"label {int(labels[wrong[0]])} of image {int(wrong[0])} is not below {classes}"
        hint = "download the file again, and check that it belongs to this dataset"
        raise DataError(message, code="data.bad_label", where=labels_file, hint=hint)
    return LabeledImages(np.ascontiguousarray(images), labels.astype(np.uint8))


def npy_bytes(image: Array) -> bytes:
    """An image as a `.npy` file."""
    return _header(image.shape) + image.tobytes()


@cache
def _header(shape: tuple[int, ...]) -> bytes:
    """The header of a `.npy` file of uint8."""
    file = BytesIO()
    npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


PREFIXES = {"train": "train", "test": "t10k"}
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
CLASSES = 10


@dataclass(frozen=True)
class IdxReader:
    """The reader of a folder with the four files."""

    folder: str

    @classmethod
    def find(cls, folder: Path) -> "IdxReader | None":
        """The reader, if the images to train on are in the folder."""
        there = any((folder / f"train-{IMAGES}{ending}").is_file() for ending in ("", ".gz"))
        return cls(str(folder)) if there else None

    def load(self, part: str) -> LabeledImages:
        images, labels = (_either(Path(self.folder, f"{PREFIXES[part]}-{content}")) for content in (IMAGES, LABELS))
        return check_labels(read_idx(images, 3), read_idx(labels, 1), CLASSES, str(images), str(labels))


def read_idx(path: Path, sides: int) -> Array:
    """The array of `sides` dimensions in an idx file of bytes, decompressed if the name ends in `.gz`."""
    data = read_gzip(path) if path.suffix == ".gz" else read_bytes(path)
    head = 4 + 4 * sides
    if data[:4] != bytes([0, 0, 8, sides]) or len(data) < head:
        start = data[:4].hex(" ")
        raise bad_archive(f"expected an idx file of bytes with {sides} dimensions, found one starting {start!r}", path)
    shape = np.frombuffer(data, ">u4", count=sides, offset=4).tolist()
    promised = head + int(np.prod(shape, dtype=object))
    if len(data) != promised:
        raise bad_archive(f"expected {promised} bytes, found {len(data)}", path)
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def read_gzip(path: Path) -> bytes:
    """The decompressed content of a gzip file."""
    try:
        with gzip.open(BytesIO(read_bytes(path))) as file:
            content = file.read(IMAGE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise bad_archive(f"not a complete gzip file: {error}", path) from None
    if len(content) > IMAGE_BYTES:
        raise bad_archive(f"unpacks to more than {IMAGE_BYTES:,} bytes", path)
    return content


def _either(path: Path) -> Path:
    """The plain or the gzipped file; one of the two must exist."""
    for file in (path, path.with_name(f"{path.name}.gz")):
        if file.is_file():
            return file
    raise missing_file(path, f"{path.name} (or {path.name}.gz)")


def missing_file(path: Path, name: str) -> DataError:
    """The error for a dataset that lacks a file."""
    message = f"{name} is missing beside the other files of the dataset"
    hint = "put it there, or unpack the whole dataset again"
    return DataError(message, code="data.missing_file", where=path.parent, hint=hint)


def bad_archive(message: str, path: Path) -> DataError:
    """The error for a damaged file of a published dataset."""
    return DataError(message, code="data.bad_archive", where=path, hint=AGAIN)
