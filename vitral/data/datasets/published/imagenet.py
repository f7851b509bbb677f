"""ImageNet-1k (ILSVRC2012) in the forms people have it, and the ReaL labels of its validation images.

    train/n01440764/*.JPEG    or ILSVRC2012_img_train.tar, a tar of a tar for each class, read in place
    val/n01440764/*.JPEG      or val/ILSVRC2012_val_00000001.JPEG ..., or ILSVRC2012_img_val.tar
    ILSVRC2012_devkit_t12/    or ILSVRC2012_devkit_t12.tar.gz: classes, counts and the labels of val
    ILSVRC/Data/CLS-LOC/      of Kaggle, with LOC_synset_mapping.txt and LOC_val_solution.csv for the devkit

Classes are WordNet ids (n01440764) in their sorted order, which is the order of all published models.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import DataError
from vitral.core.files import DOCUMENT_BYTES, UNLIMITED, open_file
from vitral.data.datasets.files import FileStore, parse_json, read_bytes, unreadable
from vitral.data.datasets.published.devkit import Records, read_records
from vitral.data.datasets.published.download import PartStore, class_folders, image_names, missing_part, partial
from vitral.data.datasets.published.window import Window
from vitral.data.datasets.shards import TarMember, build_store, list_members
from vitral.data.samples import Item, OnFault, Samples, Split, Store, by_split_and_name, format_names

CLASSES, TRAIN_IMAGES, VAL_IMAGES = 1000, 1_281_167, 50_000
TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
ROOTS = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # where train and val may be
WNID = re.compile(r"n[0-9]{8}")
NUMBER = re.compile(r"ILSVRC2012_val_([0-9]{8})")
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
HOW = f"put train/ or {TRAIN_TAR}, val/ or {VAL_TAR}, and {DEVKIT} into one folder (Kaggle's ILSVRC folder works too)"
REAL, REAL_URL = "real.json", "github.com/google-research/reassessed-imagenet"
REAL_HOW = f"put {REAL} of {REAL_URL} beside val/ of ImageNet"


class Part(NamedTuple):
    """The images of a split: names and classes (empty where only the records know), and their store."""

    split: Split
    images: list[tuple[str, str]]
    first: str  # the first folder of the names
    store: Store


def is_imagenet(folder: Path) -> bool:
    """Whether the folder has train or val in one of the forms."""
    return any(_forms(folder))


def open_imagenet(folder: Path, on_fault: OnFault) -> Samples:
    """Training and validation images, as far as both are there; each must be whole."""
    return _open(folder, ("train", "val"), on_fault)


def is_imagenet_real(folder: Path) -> bool:
    """Whether the folder has the ReaL labels, or the validation images they belong to."""
    return (folder / REAL).is_file() or any(form[0] == "val" for form in _forms(folder))


def open_imagenet_real(folder: Path, on_fault: OnFault) -> Samples:
    """The validation images with their ReaL labels (arXiv 2006.07159); images without any are left out."""
    path = folder / REAL
    if not path.is_file():
        raise missing_part(folder, [REAL], REAL_HOW)
    if not any(form[0] == "val" for form in _forms(folder)):
        raise missing_part(folder, [f"val/ or {VAL_TAR}"], HOW)
    samples = _open(folder, ("val",), on_fault)
    labels = parse_json(read_bytes(path, DOCUMENT_BYTES), path, "data.bad_archive", REAL_HOW)
    found = _checked(labels, len(samples.items), len(samples.classes), path)
    sets = {item.name: tuple(sorted(set(found[val_number(item.name) - 1]))) for item in samples.items}
    left = tuple(item for item in samples.items if sets[item.name])
    without = f"{len(samples.items) - len(left):,} images without a ReaL label are left out"
    return replace(
        samples,
        where="imagenet-real",
        items=left,
        notes=(*samples.notes, without),
        label_sets={name: each for name, each in sets.items() if each},
    )


def _checked(labels: object, images: int, classes: int, path: Path) -> list[list[int]]:
    """The ReaL labels: a list of class numbers for each image."""
    if not isinstance(labels, list) or len(labels) != images:
        found = f"{len(labels):,}" if isinstance(labels, list) else "none"
        message = f"expected a list of labels for each of the {images:,} validation images, found {found}"
        raise DataError(message, code="data.count_mismatch", where=path, hint=REAL_HOW)
    for number, each in enumerate(labels, start=1):
        if not isinstance(each, list) or not all(type(label) is int and 0 <= label < classes for label in each):
            message = f"image {number}: expected class numbers below {classes}, found {str(each)[:60]}"
            raise DataError(message, code="data.bad_label", where=path, hint=REAL_HOW)
    return labels


def val_number(name: str) -> int:
    """The number of a validation image, from 1."""
    match = NUMBER.search(name.rpartition("/")[2])
    if not match:
        message = "expected the published name, such as ILSVRC2012_val_00000001.JPEG"
        raise DataError(message, code="data.wrong_set", where=name, hint="unpack the validation images again")
    return int(match[1])


def _forms(folder: Path) -> Iterator[tuple[Split, Path]]:
    """Each split that is in the folder, and its folder or tar; a folder comes before a tar."""
    splits: tuple[tuple[Split, str], ...] = (("train", TRAIN_TAR), ("val", VAL_TAR))
    for split, tar in splits:
        places = [folder / root / split for root in ROOTS]
        found = next((place for place in places if place.is_dir()), folder / tar)
        if found.exists():
            yield split, found


def _open(folder: Path, splits: tuple[Split, ...], on_fault: OnFault) -> Samples:
    records = read_records(folder)
    parts = [_part(split, place, on_fault) for split, place in _forms(folder) if split in splits]
    classes = records.classes or tuple(sorted({wnid for part in parts for _, wnid in part.images if wnid}))
    label = {wnid: number for number, wnid in enumerate(classes)}
    if not records.classes and len(classes) != CLASSES:
        unknown = f"{len(classes)} class folders, expected {CLASSES}"
        raise partial(folder, f"{unknown}, and {DEVKIT} is not there to say what the classes are", HOW)
    items: list[Item] = []
    for part in parts:
        labeled = list(_labeled(folder, part, records))
        if foreign := sorted({wnid for _, wnid in labeled} - set(label)):
            message = f"folders of classes that are not in ImageNet-1k: {format_names(foreign)}"
            raise DataError(message, code="data.wrong_set", where=folder, hint="open the folder by its path")
        _check_counts(folder, part.split, Counter(wnid for _, wnid in labeled), records, on_fault)
        items += [Item(name, label[wnid], part.split) for name, wnid in labeled]
    store = PartStore(tuple((part.first, part.store) for part in parts))
    ordered = tuple(sorted(items, key=by_split_and_name))
    return Samples("imagenet", classes, ordered, store, (f"read from {folder}",), numbered=True)


def _labeled(folder: Path, part: Part, records: Records) -> Iterator[tuple[str, str]]:
    """The name and the class of each image; those of a flat val are in the records."""
    if any(not wnid for _, wnid in part.images) and not records.val:
        message = f"val has no class folders, and its labels ({DEVKIT}, or LOC_val_solution.csv of Kaggle)"
        raise missing_part(folder, [message], f"put {DEVKIT} into {folder}")
    for name, wnid in part.images:
        if wnid:
            yield name, wnid
            continue
        number = val_number(name)
        if number not in records.val:
            message = f"no label for validation image {number}; the labels have {len(records.val):,}"
            raise DataError(message, code="data.count_mismatch", where=folder, hint=f"download {DEVKIT} again")
        yield name, records.val[number]


def _check_counts(folder: Path, split: Split, found: Mapping[str, int], records: Records, on_fault: OnFault) -> None:
    """Compare the images of a split with what the records say, or with the published totals."""
    if split == "val":
        expected: Mapping[str, int] = Counter(records.val.values())
        total = len(records.val) or VAL_IMAGES
    else:
        expected = records.train_images
        total = sum(expected.values()) or TRAIN_IMAGES
    differing = [wnid for wnid in expected if found.get(wnid, 0) != expected[wnid]]
    if differing or sum(found.values()) != total:
        first = "".join(f"; {wnid} has {found.get(wnid, 0):,} of {expected[wnid]:,}" for wnid in differing[:1])
        on_fault(partial(folder, f"{split} has {sum(found.values()):,} of {total:,} images{first}"))


def _part(split: Split, place: Path, on_fault: OnFault) -> Part:
    if place.is_file():
        return _from_tar(split, place, on_fault)
    root = FileStore(str(place.parent))
    flat = [(f"{split}/{name}", "") for name in image_names(place)]
    nested = [
        (f"{split}/{wnid}/{name}", wnid)
        for wnid in class_folders(place)
        if WNID.fullmatch(wnid)
        for name in image_names(place / wnid)
    ]
    if flat and (nested or split == "train"):
        message = f"{len(flat):,} images beside the class folders: {format_names([name for name, _ in flat])}"
        raise DataError(message, code="data.no_labels", where=place, hint="move them into the folders of their classes")
    if not flat and not nested:
        hint = f"unpack the images of {split}; {HOW}"
        raise DataError("no images and no class folders", code="data.empty", where=place, hint=hint)
    return Part(split, flat or nested, split, root)


@dataclass(frozen=True)
class _Found:
    """An image in a tar."""

    name: str
    wnid: str
    start: int
    length: int


def _from_tar(split: Split, path: Path, on_fault: OnFault) -> Part:
    """The images in the published tar of a split, found by its headers alone."""
    try:
        with open_file(path, UNLIMITED) as file:
            images = list(_members(file, path, split, on_fault))
    except OSError as error:
        raise unreadable(path, error) from None
    names = [f"{path.name}/{image.name}" for image in images]
    ranges = ([0] * len(images), [image.start for image in images], [image.length for image in images])
    pairs = list(zip(names, (image.wnid for image in images), strict=True))
    return Part(split, pairs, path.name, build_store([str(path)], names, *ranges))


def _members(file: BufferedReader, path: Path, split: Split, on_fault: OnFault) -> Iterator[_Found]:
    outer: Iterable[TarMember] = list_members(file, str(path), on_fault)
    if split == "val":
        for member in outer:
            yield _Found(member.name.rpartition("/")[2], "", member.start, member.length)
        return
    for member in list(outer):  # the tar of a class
        wnid = member.name.rpartition("/")[2].removesuffix(".tar")
        window = BufferedReader(Window(file, member.start, member.length))
        for image in list_members(window, f"{path}/{member.name}", on_fault):
            yield _Found(f"{wnid}/{image.name}", wnid, member.start + image.start, image.length)
