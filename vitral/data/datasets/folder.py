"""A folder of images with a folder for each class, either directly in it or below train, val and test.

A class is a folder that contains images. Its name is its path: `cat`, or `animals/cat` if folders are nested.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import DataError, did_you_mean
from vitral.data.datasets.files import FileStore, Folder, Identity, ancestors_of, list_folder, suffix
from vitral.data.samples import (
    SPLIT_ALIASES,
    SPLITS,
    Item,
    OnFault,
    Row,
    Samples,
    Split,
    StratifiedSplit,
    build_samples,
    format_names,
    normalize_unicode,
    refuse,
    stratified_split,
)

# Image formats that are not read.
FOREIGN = frozenset((".arw", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".svg"))


class Leaf(NamedTuple):
    """A folder without further classes in it, with its path from the root."""

    name: str
    images: list[str]
    others: list[str]


class SplitFolder(NamedTuple):
    """A folder that holds the images of a split."""

    split: Split
    name: str


def open_folder(path: Path, val_split: StratifiedSplit, on_fault: OnFault = refuse) -> Samples:
    """The images of a folder. If it has no splits, some images of each class are kept for validation."""
    root = str(path)
    ancestors = ancestors_of(path)
    top = _list(root, ancestors, on_fault)
    splits = _split_folders(root, top, on_fault) if top else []
    rows: list[Row] = []
    others: list[str] = []
    for split, part in splits or [SplitFolder("train", "")]:
        leaves = _classes(root, part, top.ancestors if top and part else ancestors, on_fault)
        rows += [Row(f"{leaf.name}/{image}", label, split) for label, leaf in leaves for image in leaf.images]
        others += [f"{leaf.name}/{other}" for _, leaf in leaves for other in leaf.others]
    foreign = [other for other in others if suffix(other) in FOREIGN]
    notes = [f"left out; convert these images to JPEG or PNG first: {format_names(foreign)}"] if foreign else []
    rest = [other for other in others if other not in foreign]
    notes += [f"left out, not an image by its name: {format_names(rest)}"] if rest else []
    used = {folder.name for folder in splits}
    beside = [folder for folder in top.folders if used and folder not in used] if top else []
    if beside:
        notes.append(f"left out, beside {splits[0].name}: {format_names(beside)}")

    def on_class_fault(fault: DataError) -> None:
        reported = splits and splits[0].split != "train"  # that there is no train, which explains this one
        if not (reported and fault.code == "data.class_not_in_train"):
            on_fault(fault)

    return build_samples(root, rows, FileStore(root), val_split, notes, on_class_fault)


def open_unlabeled(path: Path, val_split: StratifiedSplit, on_fault: OnFault = refuse) -> Samples:
    """All images in a folder and in the folders below it, as one class without a name; some are for validation."""
    names = list(_images(str(path), "", ancestors_of(path), on_fault))
    if not names:
        message, hint = "no images in this folder or below it", "give a folder with JPEG or PNG files"
        on_fault(DataError(message, code="data.empty", where=path, hint=hint))
    rows, _ = stratified_split((Row(name, "", "train") for name in names), val_split)
    note = f"{val_split.fraction:.0%} of the images are kept for validation (seed {val_split.seed})"
    items = tuple(Item(row.name, 0, row.split) for row in rows)
    return Samples(str(path), ("",), items, FileStore(str(path)), (note,))


def _images(root: str, name: str, ancestors: tuple[Identity, ...], on_fault: OnFault) -> Iterator[str]:
    folder = _list(_path(root, name), ancestors, on_fault)
    if folder is None:
        return
    yield from (_join(name, image) for image in folder.images)
    for inner in folder.folders:
        yield from _images(root, _join(name, inner), folder.ancestors, on_fault)


def _classes(root: str, part: str, ancestors: tuple[Identity, ...], on_fault: OnFault) -> list[tuple[str, Leaf]]:
    """The classes below a split folder, or below the root itself if `part` is empty, with their names."""
    where = _path(root, part)
    leaves = list(_leaves(root, part, ancestors, on_fault))
    if leaves and leaves[0].name == part:
        found = f"images without a class ({format_names(leaves[0].images)})" if leaves[0].images else "no images"
        code = "data.no_labels" if leaves[0].images else "data.empty"
        hint = (
            "put the images of each class in a folder of their own, or list them with labels in a manifest; "
            "to train without labels: --task masked_patches"
        )
        on_fault(DataError(found, code=code, where=where, hint=hint))
        return []
    empty = [leaf for leaf in leaves if not leaf.images]
    if empty:
        on_fault(_empty_class(root, empty))
    classes: dict[str, Leaf] = {}
    found_classes = []
    for leaf in leaves:
        label = normalize_unicode(leaf.name.removeprefix(f"{part}/"))
        first = classes.setdefault(label, leaf)
        if first is not leaf:
            message = f"two folder names look the same: {first.name!a} and {leaf.name!a}"
            on_fault(DataError(message, code="data.ambiguous_class", where=where, hint="rename one of them"))
        found_classes.append((label, leaf))
    return found_classes


def _leaves(root: str, name: str, ancestors: tuple[Identity, ...], on_fault: OnFault) -> Iterator[Leaf]:
    """Every folder that contains images, and every folder that contains nothing."""
    path = _path(root, name)
    listing = _list(path, ancestors, on_fault)
    if listing is None:
        return
    if name and _split_folders(path, listing, on_fault):
        hint = f"give {path} itself, or put train and val above the classes"
        on_fault(DataError("contains a train folder", code="data.bad_layout", where=path, hint=hint))
        return
    inner = [
        leaf for folder in listing.folders for leaf in _leaves(root, _join(name, folder), listing.ancestors, on_fault)
    ]
    if not listing.images:
        yield from inner or [Leaf(name, [], listing.others)]
        return
    nested = [leaf for leaf in inner if leaf.images]
    if nested:
        message = f"contains both images ({format_names(listing.images)}) and a folder of images ({nested[0].name})"
        hint = "keep only one of the two there: a class cannot contain other classes"
        on_fault(DataError(message, code="data.bad_layout", where=path, hint=hint))
        yield from nested
        return
    yield Leaf(name, listing.images, listing.others)


def _split_folders(path: str, listing: Folder, on_fault: OnFault) -> list[SplitFolder]:
    """The folders of the splits; none if the folders are classes, even if one of them is called train."""
    words = [folder for folder in listing.folders if folder.lower() in SPLIT_ALIASES]
    files = [other for other in listing.others if other.lower() in SPLIT_ALIASES]
    if files and (words or not listing.folders):
        where, hint = _path(path, files[0]), "rename or remove it"
        on_fault(DataError("expected a folder, found a file", code="data.bad_layout", where=where, hint=hint))
    found = [SplitFolder(split, word) for split in SPLITS for word in words if SPLIT_ALIASES[word.lower()] == split]
    for one, other in pairwise(found):
        if one.split == other.split:
            message, hint = f"{one.name} and {other.name} both mean {one.split}", "merge the two folders, or rename one"
            on_fault(DataError(message, code="data.ambiguous_split", where=path, hint=hint))
    beside = [folder for folder in listing.folders if folder not in words]
    if not any(folder.split == "train" for folder in found):
        if words and (not beside or _has_folders(path, words[0])):
            similar = [folder for folder in beside if did_you_mean(folder.lower(), ["train", "training"])]
            hint = "put the training images in a folder called train beside it"
            if beside:
                hint = f"rename {similar[0]} to train" if similar else f"{hint}, or rename {words[0]} if it is a class"
            message = f"there is a folder {words[0]} but no folder train"
            on_fault(DataError(message, code="data.no_train_split", where=path, hint=hint))
            return found
        return []
    if beside and not _has_folders(path, found[0].name):
        return []  # a class called train, beside cars and ships
    if beside and len(found) == 1:
        message = f"{format_names(beside)} beside {words[0]}: unclear whether these are splits or classes"
        hint = "put them inside train, or rename train if it is a class"
        on_fault(DataError(message, code="data.ambiguous_split", where=path, hint=hint))
    return found


def _has_folders(path: str, name: str) -> bool:
    with suppress(DataError):  # found again when the folder is read
        return bool(list_folder(_path(path, name), ()).folders)
    return False


def _list(path: str, ancestors: tuple[Identity, ...], on_fault: OnFault) -> Folder | None:
    """The contents of a folder, if it can be read. A broken link is a fault: it could be an image of a class."""
    try:
        folder = list_folder(path, ancestors)
    except DataError as fault:
        on_fault(fault)
        return None
    for link in folder.broken_links:
        where = os.path.join(path, link)
        if os.path.exists(where):
            message, hint = "a pipe, a device or a socket, or a link to one", "remove it"
            on_fault(DataError(message, code="data.not_a_file", where=where, hint=hint))
        else:
            on_fault(DataError("broken link", code="data.broken_link", where=where, hint="repair or remove the link"))
    return folder


def _empty_class(root: str, empty: list[Leaf]) -> DataError:
    first = empty[0]
    more = f" (also {format_names([leaf.name for leaf in empty[1:]])})" if empty[1:] else ""
    hint = "add images to it, or remove the folder"
    kinds = Counter(suffix(other) or "no suffix" for other in first.others)
    if kinds:
        more += f"; its files have other suffixes: {format_names([kind for kind, _ in kinds.most_common()])}"
        hint = "save them as JPEG or PNG, or remove the folder"
    where = _path(root, first.name)
    return DataError(f"a class folder without images{more}", code="data.empty_class", where=where, hint=hint)


def _path(root: str, name: str) -> str:
    return os.path.join(root, name) if name else root


def _join(name: str, folder: str) -> str:
    return f"{name}/{folder}" if name else folder
