"""ObjectNet (`objectnet-1.0.zip`, unpacked): photos of objects in unusual places, to evaluate on alone.

Its authors forbid to train on it, so all its images are for testing. Each photo has a red border of 2 pixels, which is
cut off when it is read, as they ask. Of its 313 classes, those that ImageNet has are used; one of them may be several
classes of ImageNet, of which any is right.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitral.core.errors import DataError
from vitral.core.files import CONFIG_BYTES
from vitral.data.datasets.arrays import Array, npy_bytes
from vitral.data.datasets.files import FileStore, parse_json, read_bytes, read_lines
from vitral.data.datasets.published.download import class_folders, image_names, missing_part, partial
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding
from vitral.data.samples import Item, OnFault, Samples, by_split_and_name

BORDER = 2  # pixels
RED, OTHER = 180, 90  # the border has more red than the first, and less green and blue than the second
FOLDERS = "mappings/folder_to_objectnet_label.json"
TO_IMAGENET = "mappings/objectnet_to_imagenet_1k.json"
NUMBERS = "mappings/pytorch_to_imagenet_2012_id.json"
NAMES = "mappings/imagenet_to_label_2012_v2"
FILES = (FOLDERS, TO_IMAGENET, NUMBERS, NAMES, "images/")
HOW = "unpack objectnet-1.0.zip (images/ with a folder for each class, and mappings/)"


@dataclass(frozen=True)
class BorderlessStore:
    """Photos without their red border, as `.npy` files."""

    files: FileStore

    def read(self, name: str) -> bytes:
        return npy_bytes(self._pixels(name))

    def address(self, name: str) -> str:
        return self.files.address(name)

    def size(self, name: str) -> int:
        return len(self.read(name))

    def _pixels(self, name: str) -> Array:
        pixels = decode(self.files.read(name), name, Decoding(), FULL_SIZE)  # (H, W, 3)
        edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
        if any((edge[:, 0] < RED).any() or (edge[:, 1:] > OTHER).any() for edge in edges):
            message = f"has no red border of {BORDER} pixels, which every photo of ObjectNet has and which is cut off"
            hint = "use the files of objectnet-1.0.zip as they are"
            raise DataError(message, code="data.wrong_set", where=self.address(name), hint=hint)
        return pixels[BORDER:-BORDER, BORDER:-BORDER].copy()


def is_objectnet(folder: Path) -> bool:
    """Whether the folder has one of the mappings."""
    return any((folder / name).is_file() for name in (FOLDERS, TO_IMAGENET))


def open_objectnet(folder: Path, on_fault: OnFault) -> Samples:
    """The photos of the classes that ImageNet has, with the numbers and names of ImageNet's classes."""
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise missing_part(folder, missing, HOW)
    classes, accepted = _mappings(folder)
    folders = class_folders(folder / "images")
    if absent := sorted(set(accepted) - set(folders)):
        on_fault(partial(folder, f"images/ lacks {len(absent)} folders, {absent[0]} among them", HOW))
    items, sets = [], {}
    for each in (name for name in folders if name in accepted):
        for image in image_names(folder / "images" / each):
            name = f"images/{each}/{image}"
            items.append(Item(name, accepted[each][0], "test"))
            sets[name] = accepted[each]
    if not items:
        raise partial(folder, "no images of a class that ImageNet has", HOW)
    used = len(accepted.keys() & set(folders))
    notes = (
        f"read from {folder}; the red border of {BORDER} pixels is cut off",
        f"{used} of its {len(folders)} classes are classes of ImageNet; the others are left out",
    )
    return Samples(
        "objectnet",
        classes,
        tuple(sorted(items, key=by_split_and_name)),
        BorderlessStore(FileStore(str(folder))),
        notes,
        numbered=True,
        label_sets=sets,
    )


def _mappings(folder: Path) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The names of ImageNet's classes by number, and the numbers that are right for each folder of images."""
    lines = [line.strip() for line in read_lines(folder / NAMES)]
    numbers, to_imagenet, folders = (_read(folder / name) for name in (NUMBERS, TO_IMAGENET, FOLDERS))
    try:
        order = {int(number): lines[int(line)] for number, line in numbers.items()}
        classes = tuple(order[number] for number in range(len(order)))
        label = {name: number for number, name in order.items()}
        accepted = {
            each: tuple(sorted(label[name] for name in to_imagenet[title].split("; ")))
            for each, title in folders.items()
            if title in to_imagenet
        }
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        message = f"its mappings do not agree: {type(error).__name__} {error}"
        raise DataError(message, code="data.bad_archive", where=folder / "mappings", hint=HOW) from None
    return classes, accepted


def _read(path: Path) -> Mapping[str, Any]:
    found = parse_json(read_bytes(path, CONFIG_BYTES), path, "data.bad_archive", HOW)
    if not isinstance(found, dict) or not found:
        raise DataError("expected names and values", code="data.bad_archive", where=path, hint=HOW)
    return found
