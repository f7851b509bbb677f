"""A folder of images: a folder for each class, below train, val and test or alone.

A class is a folder that holds images, named by its path: `cat`, or `animals/cat` where folders are nested.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import DataError, did_you_mean
from vitral.data.datasets.files import FileStore, Folder, Identity, ancestors_of, list_folder, suffix
from vitral.data.samples import (
    SPLIT_ALIASES,
    SPLITS,
    Item,
    Row,
    Samples,
    Split,
    StratifiedSplit,
    build_samples,
    format_names,
    normalize_unicode,
    stratified_split,
)

# Pictures of kinds that are not read.
FOREIGN = frozenset((".arw", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".svg"))


class Leaf(NamedTuple):
    """A folder without further classes in it, by its path from the root."""

    name: str
    images: list[str]
    others: list[str]


def open_folder(path: Path, val_split: StratifiedSplit) -> Samples:
    """The images of a folder; if it has no splits, some are set aside for validation."""
    root = str(path)
    ancestors = ancestors_of(path)
    top = _list(root, ancestors)
    splits = _split_folders(root, top)
    parts: dict[Split, str] = splits or {"train": ""}
    rows: list[Row] = []
    others: list[str] = []
    for split, part in parts.items():
        leaves = _classes(root, part, ancestors)
        rows += [Row(f"{leaf.name}/{image}", label, split) for label, leaf in leaves.items() for image in leaf.images]
        others += [f"{leaf.name}/{other}" for leaf in leaves.values() for other in leaf.others]
    foreign = [other for other in others if suffix(other) in FOREIGN]
    notes = [f"left out, pictures to be saved as JPEG or PNG first: {format_names(foreign)}"] if foreign else []
    rest = [other for other in others if other not in foreign]
    notes += [f"left out, not an image by its name: {format_names(rest)}"] if rest else []
    beside = [folder for folder in top.folders if splits and folder not in splits.values()]
    if beside:
        notes.append(f"left out, beside {splits['train']}: {format_names(beside)}")
    return build_samples(root, rows, FileStore(root), val_split, notes)


def open_unlabeled(path: Path, val_split: StratifiedSplit) -> Samples:
    """All images anywhere below a folder, of one class without a name, some set aside for validation."""
    names = list(_images(str(path), "", ancestors_of(path)))
    if not names:
        raise DataError(
            "no images in it or in its folders", code="data.empty", where=path, hint="give a folder with JPEG or PNG"
        )
    rows, _ = stratified_split((Row(name, "", "train") for name in names), val_split)
    note = f"{val_split.fraction:.0%} of the images are kept for validation (seed {val_split.seed})"
    items = tuple(Item(row.name, 0, row.split) for row in rows)
    return Samples(str(path), ("",), items, FileStore(str(path)), (note,))


def _images(root: str, name: str, ancestors: tuple[Identity, ...]) -> Iterator[str]:
    folder = _list(_path(root, name), ancestors)
    yield from (_join(name, image) for image in folder.images)
    for inner in folder.folders:
        yield from _images(root, _join(name, inner), folder.ancestors)


def _classes(root: str, part: str, ancestors: tuple[Identity, ...]) -> dict[str, Leaf]:
    """The classes below one part of the root (`train`, or the root itself) by name."""
    where = _path(root, part)
    leaves = list(_leaves(root, part, ancestors))
    if leaves[0].name == part:
        found = f"images without a class ({format_names(leaves[0].images)})" if leaves[0].images else "no images"
        hint = (
            "put the images of each class in a folder of their own, or list them with labels in a manifest; "
            "to learn without labels: vitral train --task masked"
        )
        raise DataError(
            f"{found} in it", code="data.no_labels" if leaves[0].images else "data.empty", where=where, hint=hint
        )
    empty = [leaf for leaf in leaves if not leaf.images]
    if empty:
        raise _empty_class(root, empty)
    classes: dict[str, Leaf] = {}
    for leaf in leaves:
        label = normalize_unicode(leaf.name.removeprefix(f"{part}/"))
        if label in classes:
            twins = f"{classes[label].name!a} and {leaf.name!a}"
            raise DataError(
                f"two folders have the same name to a reader: {twins}",
                code="data.ambiguous_class",
                where=where,
                hint="rename one",
            )
        classes[label] = leaf
    return classes


def _leaves(root: str, name: str, ancestors: tuple[Identity, ...]) -> Iterator[Leaf]:
    """Every folder that holds images, and every folder that holds nothing, by its path from the root."""
    path = _path(root, name)
    listing = _list(path, ancestors)
    if name and _split_folders(path, listing):
        raise DataError(
            "has train and its like inside",
            code="data.bad_layout",
            where=path,
            hint=f"give {path} itself, or put train and val above the classes",
        )
    inner = [leaf for folder in listing.folders for leaf in _leaves(root, _join(name, folder), listing.ancestors)]
    if not listing.images:
        yield from inner or [Leaf(name, [], listing.others)]
        return
    nested = next((leaf.name for leaf in inner if leaf.images), "")
    if nested:
        raise DataError(
            f"holds images ({format_names(listing.images)}) and a folder of images ({nested})",
            code="data.bad_layout",
            where=path,
            hint="keep one of them there: a class has no classes inside",
        )
    yield Leaf(name, listing.images, listing.others)


def _split_folders(path: str, listing: Folder) -> dict[Split, str]:
    """The folders for each split; none where the folders are classes, even if one of them is called train."""
    words = [folder for folder in listing.folders if folder.lower() in SPLIT_ALIASES]
    files = [other for other in listing.others if other.lower() in SPLIT_ALIASES]
    if files and (words or not listing.folders):
        raise DataError(
            "expected a folder, found a file",
            code="data.bad_layout",
            where=_path(path, files[0]),
            hint="rename or remove it",
        )
    folders: dict[Split, str] = {}
    for word in words:
        split = SPLIT_ALIASES[word.lower()]
        if split in folders:
            message = f"{folders[split]} and {word} both stand for {split}"
            raise DataError(
                message, code="data.ambiguous_split", where=path, hint="make one folder of the two, or rename one"
            )
        folders[split] = word
    classes = len(words) < len(listing.folders)
    if "train" not in folders:
        if words and (not classes or _list(_path(path, words[0]), ()).folders):
            others = [folder for folder in listing.folders if did_you_mean(folder.lower(), ["train", "training"])]
            hint = "put the training images in a folder called train beside it"
            if classes:
                hint = f"rename {others[0]} to train" if others else f"{hint}, or rename {words[0]} if it is a class"
            raise DataError(f"{words[0]} without train", code="data.no_train_split", where=path, hint=hint)
        return {}
    if classes and not _list(_path(path, folders["train"]), ()).folders:
        return {}  # a class called train, beside cars and ships
    if classes and len(folders) == 1:
        beside = [folder for folder in listing.folders if folder not in words]
        hint = "put them inside train, or rename train if it is a class"
        raise DataError(
            f"{format_names(beside)} beside {words[0]}: splits or classes?",
            code="data.ambiguous_split",
            where=path,
            hint=hint,
        )
    return {split: folders[split] for split in SPLITS if split in folders}


def _list(path: str, ancestors: tuple[Identity, ...]) -> Folder:
    """What the folder holds; a broken link might hide an image of a class, and is refused."""
    folder = list_folder(path, ancestors)
    if folder.broken_links:
        where = os.path.join(path, folder.broken_links[0])
        raise DataError("broken link", code="data.broken_link", where=where, hint="repair or remove the link")
    return folder


def _empty_class(root: str, empty: list[Leaf]) -> DataError:
    first = empty[0]
    more = f" (so have {format_names([leaf.name for leaf in empty[1:]])})" if empty[1:] else ""
    hint = "add images to it, or remove the folder"
    kinds = Counter(suffix(other) or "no ending" for other in first.others)
    if kinds:
        more += f"; what it holds ends in {format_names([kind for kind, _ in kinds.most_common()])}"
        hint = "save them as JPEG or PNG, or remove the folder"
    return DataError(f"a class without images{more}", code="data.empty_class", where=_path(root, first.name), hint=hint)


def _path(root: str, name: str) -> str:
    return os.path.join(root, name) if name else root


def _join(name: str, folder: str) -> str:
    return f"{name}/{folder}" if name else folder
