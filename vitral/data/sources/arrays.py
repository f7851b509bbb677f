"""Images that are rows of a few large arrays: whole data sets of small pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitral.data.samples import Item, Row, Samples, Split
from vitral.errors import DataError

Array = NDArray[np.uint8]
PARTS: tuple[Split, ...] = ("train", "test")


class Part(NamedTuple):
    """Images, (images, H, W) or (images, H, W, 3), and the number of the class of each."""

    images: Array
    labels: Array


class Reader(Protocol):
    """How to load a part of a data set. A frozen value: it goes to other processes, and equal ones load the same."""

    def load(self, part: str) -> Part: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Arrays:
    """A store whose names are `train/0000.npy` and so on: the part and the row. Every process loads a part once."""

    where: str
    reader: Reader

    def read(self, name: str) -> bytes:
        """The image as a `.npy` file."""
        image = self._image(name)
        return _header(image.shape) + image.tobytes()

    def address(self, name: str) -> str:
        return f"{self.where}: {name}"

    def size(self, name: str) -> int:
        image = self._image(name)
        return len(_header(image.shape)) + image.nbytes

    def rows(self, names: Iterable[str]) -> tuple[Array, NDArray[np.int64]] | None:
        """All images of a part, (images, H, W, C), and the row of each name; nothing if the names are of two parts."""
        found = [_place(name) for name in names]
        if len({part for part, _ in found}) != 1:
            return None
        images = loaded(self.reader, found[0][0]).images
        return images if images.ndim == 4 else images[..., None], np.array([row for _, row in found])

    def _image(self, name: str) -> Array:
        part, row = _place(name)
        return loaded(self.reader, part).images[row]


def _place(name: str) -> tuple[str, int]:
    """The part and the row that a name stands for."""
    part, _, number = name.removesuffix(".npy").rpartition("/")
    return part, int(number)


@cache
def loaded(reader: Reader, part: str) -> Part:
    """The part as its reader gives it, kept for as long as the process runs and not to be written to."""
    found = reader.load(part)
    for array in found:
        array.setflags(write=False)
    return found


def rows_of(reader: Reader, part: str, split: Split, classes: Sequence[str]) -> list[Row]:
    """A row for each image of the part."""
    labels = loaded(reader, part).labels.tolist()
    digits = max(4, len(str(len(labels) - 1)))  # so that the order of names is that of numbers
    return [Row(f"{part}/{number:0{digits}}.npy", classes[label], split) for number, label in enumerate(labels)]


def open_arrays(where: str, classes: tuple[str, ...], reader: Reader, notes: tuple[str, ...] = ()) -> Samples:
    """The samples of a reader with a part for training and one for testing."""
    label = {name: number for number, name in enumerate(classes)}
    rows = [row for part in PARTS for row in rows_of(reader, part, part, classes)]
    return Samples(
        where, classes, tuple(Item(row.name, label[row.label], row.split) for row in rows), Arrays(where, reader), notes
    )


def checked(images: Array, labels: NDArray[np.integer[Any]], classes: int, images_file: str, labels_file: str) -> Part:
    """The two as a part, once there is a label for every image and a class for every label."""
    if not len(images) or len(images) != len(labels):
        what = f"{len(labels)} labels for the {len(images)} images in {images_file}"
        raise DataError(what, code="data.count_mismatch", where=labels_file, remedy="fetch both files again")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        what = f"label {int(labels[wrong[0]])} of image {int(wrong[0])} is not below {classes}"
        raise DataError(
            what,
            code="data.bad_label",
            where=labels_file,
            remedy="fetch the file again, and check that it is of this data set",
        )
    return Part(np.ascontiguousarray(images), labels.astype(np.uint8))


@cache
def _header(shape: tuple[int, ...]) -> bytes:
    """The first bytes of a `.npy` file of so many uint8."""
    file = BytesIO()
    npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()
