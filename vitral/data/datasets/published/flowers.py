"""Oxford Flowers-102 (`102flowers.tgz`, `imagelabels.mat`, `setid.mat`). Its classes are numbers, without names."""

from pathlib import Path
from typing import Any

import numpy as np

from vitral.core.errors import DataError
from vitral.core.files import CONFIG_BYTES
from vitral.data.datasets.files import read_bytes
from vitral.data.datasets.published.download import existing_items, file_store, missing_part
from vitral.data.datasets.published.matlab import read_matlab
from vitral.data.samples import Item, OnFault, Samples, Split, by_split_and_name

LABELS, SETS, IMAGES = "imagelabels.mat", "setid.mat", "jpg/"
VARIABLES: dict[Split, str] = {"train": "trnid", "val": "valid", "test": "tstid"}
HOW = f"unpack 102flowers.tgz of Oxford Flowers-102 (it makes {IMAGES}), and put {LABELS} and {SETS} beside {IMAGES}"


def is_flowers(folder: Path) -> bool:
    """Whether the folder has one of the two files of labels."""
    return (folder / LABELS).is_file() or (folder / SETS).is_file()


def open_flowers(folder: Path, on_fault: OnFault) -> Samples:
    """The images in the published splits: 1,020 to train, 1,020 to validate, 6,149 to test."""
    missing = [name for name in (LABELS, SETS, IMAGES) if not (folder / name).exists()]
    if missing:
        raise missing_part(folder, missing, HOW)
    labels = _whole_numbers(folder / LABELS, "labels")
    items: list[Item] = []
    for split, variable in VARIABLES.items():
        for number in _whole_numbers(folder / SETS, variable):
            if number > len(labels):
                message = f"{variable} names image {number}, but {LABELS} has {len(labels)} labels"
                raise DataError(message, code="data.count_mismatch", where=folder / SETS, hint=HOW)
            items.append(Item(f"{IMAGES}image_{number:05}.jpg", labels[number - 1] - 1, split))
    if len({item.name for item in items}) < len(items):
        raise DataError("an image is in two splits", code="data.bad_split", where=folder / SETS, hint=HOW)
    classes = tuple(str(number) for number in range(1, max(labels) + 1))
    there = existing_items(folder, sorted(items, key=by_split_and_name), on_fault)
    return Samples("oxford-flowers", classes, there, file_store(folder), (f"read from {folder}",))


def _whole_numbers(path: Path, variable: str) -> list[int]:
    """The numbers of a variable, which are 1 or more."""
    found: Any = read_matlab(read_bytes(path, CONFIG_BYTES), str(path)).get(variable)
    if not isinstance(found, np.ndarray) or not found.size or not (found >= 1).all() or (found % 1).any():
        message = f"expected a variable {variable!r} of whole numbers from 1"
        raise DataError(message, code="data.bad_archive", where=path, hint="download it again")
    return [int(number) for number in found.ravel()]
