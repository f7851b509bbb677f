"""What ImageNet's own records say: the classes, their training images, and the labels of the validation images.

They are in the development kit of ILSVRC2012, as a folder or as its archive, or in the tables of Kaggle's download.
"""

import csv
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from vitral.core.errors import DataError
from vitral.core.files import CONFIG_BYTES
from vitral.data.datasets.arrays import read_gzip
from vitral.data.datasets.files import read_bytes, read_lines
from vitral.data.datasets.published.matlab import read_matlab

FOLDER = "ILSVRC2012_devkit_t12"
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
SYNSETS, SOLUTION = "LOC_synset_mapping.txt", "LOC_val_solution.csv"  # of Kaggle
AGAIN = f"download {FOLDER}.tar.gz again"


class Records(NamedTuple):
    """What is known; empty where no file says it."""

    classes: tuple[str, ...] = ()  # sorted
    train_images: Mapping[str, int] = {}  # of each class
    val: Mapping[int, str] = {}  # the class of each validation image by its number, from 1


def read_records(folder: Path) -> Records:
    """The records in the folder of a download, or beside the images of Kaggle's."""
    home = folder / FOLDER
    if (home / META).is_file() and (home / TRUTH).is_file():
        meta, truth = (read_bytes(home / name, CONFIG_BYTES) for name in (META, TRUTH))
        return _from_devkit(meta, truth, home)
    archive = folder / f"{FOLDER}.tar.gz"
    if archive.is_file():
        return _from_devkit(*_unpack(archive), archive)
    for place in (folder, folder.parent):
        if (place / SYNSETS).is_file():
            return _from_kaggle(place)
    return Records()


def _unpack(archive: Path) -> tuple[bytes, bytes]:
    """The two files of the archive that are needed."""
    try:
        with tarfile.open(fileobj=BytesIO(read_gzip(archive)), mode="r:") as tar:
            files = (tar.extractfile(f"{FOLDER}/{name}") for name in (META, TRUTH))
            meta, truth = (file.read() if file else b"" for file in files)
    except (tarfile.TarError, KeyError, ValueError) as error:
        message = f"does not hold {META} and {TRUTH}: {error}"
        raise DataError(message, code="data.bad_archive", where=archive, hint=AGAIN) from None
    return meta, truth


def _from_devkit(meta: bytes, truth: bytes, where: Path) -> Records:
    synsets: Any = read_matlab(meta, f"{where}: {META}").get("synsets")
    try:
        leaves = [row for row in synsets if _number(row["num_children"]) == 0]
        by_number = {_number(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
        images = {str(row["WNID"]): _number(row["num_train_images"]) for row in leaves}
        val = {line: by_number[int(text)] for line, text in enumerate(truth.split(), start=1)}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        message = f"{META} and {TRUTH} do not agree: {type(error).__name__} {error}"
        raise DataError(message, code="data.bad_archive", where=where, hint=AGAIN) from None
    return Records(tuple(sorted(images)), images, val)


def _number(value: Any) -> int:
    return int(value.item())


def _from_kaggle(folder: Path) -> Records:
    classes = tuple(sorted(line.split()[0] for line in read_lines(folder / SYNSETS) if line.strip()))
    val: dict[int, str] = {}
    if (folder / SOLUTION).is_file():
        for row in csv.DictReader(read_lines(folder / SOLUTION)):
            number, words = row.get("ImageId", "").rpartition("_")[2], row.get("PredictionString", "").split()
            if not number.isdecimal() or not words or words[0] not in classes:
                message, hint = f"expected ImageId and PredictionString, found {row}", "download it from Kaggle again"
                raise DataError(message, code="data.bad_archive", where=folder / SOLUTION, hint=hint)
            val[int(number)] = words[0]
    return Records(classes, {}, val)
