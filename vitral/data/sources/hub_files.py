"""Which Parquet and Arrow files make up a data set of Hugging Face, and what each is for.

Three layouts are known: what `save_to_disk` of `datasets` writes (`state.json` lists the files, `dataset_dict.json` the
folders of the splits); files named as on the hub (`data/train-00000-of-00002.parquet`) or in the cache
(`mnist-train.arrow`); and folders named as splits (`train/0000.parquet`).
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vitral.data.samples import SPLIT_WORDS, SPLITS, Split
from vitral.data.sources.files import is_image, read_bytes, suffix
from vitral.data.sources.labels import listed
from vitral.errors import DataError

TABLES = (".parquet", ".arrow")
METADATA = "metadata.parquet"  # goes with a folder of images, and has none in it
DEPTH = 2  # folders between the one that is given and its files: default/train/0000.parquet
SHARD = re.compile(r"(?P<stem>.*?)(-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-z]+)?)?")


class TableFile(NamedTuple):
    """A file by its path from the root, with `/` between the parts, and what its rows are for."""

    name: str
    split: Split


class Found(NamedTuple):
    files: list[TableFile]
    notes: list[str]


def holds_tables(path: Path) -> bool:
    """Whether the path is a Parquet or Arrow file or a folder of them; an image tells a folder of images."""
    try:
        if not path.is_dir():
            return suffix(path.name) in TABLES and path.is_file()
        return any(_below(path, DEPTH))
    except OSError:
        return False  # the source of folders says what is wrong with it


def find_tables(root: Path) -> Found:
    """The files of the data set in a folder."""
    if (root / "dataset_dict.json").is_file():
        words = _names(root / "dataset_dict.json", "splits", _json(root / "dataset_dict.json").get("splits"))
        return _by_split(root, {word: _saved(root, word) for word in words})
    if (root / "state.json").is_file():
        return _by_split(root, {"": _saved(root, "")})
    names = sorted(path.relative_to(root).as_posix() for path in _below(root, DEPTH))
    _refuse_missing(root, names)
    _refuse_several(root, names)
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        files[_word(name)].append(name)
    return _by_split(root, files)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The tables in the folder and the folders below it, down to the depth; none in a folder that holds an image."""
    tables, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_image(entry.name):
                return
            if entry.name.startswith(".") or entry.name == METADATA:
                continue
            if suffix(entry.name) in TABLES and entry.is_file():
                tables.append(Path(entry.path))
            elif depth and entry.is_dir():
                folders.append(Path(entry.path))
    yield from tables
    for path in folders:
        yield from _below(path, depth - 1)


def _by_split(root: Path, words: dict[str, list[str]]) -> Found:
    """The files for each split; those of other words are left out, unless there is nothing else."""
    known = {word: SPLIT_WORDS[word.lower()] for word in words if word.lower() in SPLIT_WORDS}
    if not known and len(words) == 1:
        known = dict.fromkeys(words, "train")
    if not known:
        what = f"none of its splits is for training: {listed(list(words))}"
        raise DataError(
            what, code="data.no_train_split", where=str(root), remedy="give one of the folders, or call one split train"
        )
    if len(set(known.values())) < len(known):
        what = f"two of its splits stand for the same: {listed(list(known))}"
        raise DataError(what, code="data.ambiguous_split", where=str(root), remedy="rename or remove one")
    in_order = sorted(known, key=lambda word: SPLITS.index(known[word]))
    others = [name for word, names in words.items() if word not in known for name in names]
    notes = [f"left out, of no split that is used: {listed(others)}"] if others else []
    return Found([TableFile(name, known[word]) for word in in_order for name in words[word]], notes)


def _saved(root: Path, folder: str) -> list[str]:
    """The files that `save_to_disk` wrote into a folder; others there are leftovers of `map` and `filter`."""
    path = root / folder / "state.json"
    state = _json(path)
    if state.get("_indices_data_files"):
        what = "its rows are chosen by a file of indices"
        raise DataError(
            what, code="data.unsupported_table", where=str(path), remedy="save it anew after flatten_indices()"
        )
    entries = state.get("_data_files")
    found = [isinstance(file, dict) and file.get("filename") for file in entries] if isinstance(entries, list) else []
    names = [str(PurePosixPath(folder, name)) for name in _names(path, "_data_files", found)]
    for name in names:
        if not (root / name).is_file():
            raise DataError(
                f"{name} is missing",
                code="data.missing_file",
                where=str(path),
                remedy="put it back, or save the set anew",
            )
    return names


def _names(path: Path, field: str, found: object) -> list[str]:
    """What a field lists, once it is names of things that lie beside the file."""
    if not isinstance(found, list) or not found or not all(map(_is_name, found)):
        what = f"expected names of files or folders in {field}"
        raise DataError(what, code="data.bad_index", where=str(path), remedy="save the set anew")
    return found


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ".." and PurePosixPath(value).name == value


def _json(path: Path) -> dict[str, Any]:
    text = read_bytes(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not JSON: {error}", code="data.bad_index", where=str(path), remedy="save the set anew"
        ) from None
    return found if isinstance(found, dict) else {}


def _word(name: str) -> str:
    """The word for the split in the name of a file or of its folder; empty where there is none."""
    path = PurePosixPath(name)
    parts = re.split(r"[-_.]", _shard(name)["stem"].lower())
    words = (parts[0], parts[-1], path.parent.name.lower())
    return next((word for word in words if word in SPLIT_WORDS), "")


def _shard(name: str) -> re.Match[str]:
    match = SHARD.fullmatch(PurePosixPath(name).stem)
    assert match  # the stem may be anything
    return match


def _refuse_missing(root: Path, names: list[str]) -> None:
    """Refuse a split of which some files are not there, as after a download that was broken off."""
    counts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for name in names:
        shard = _shard(name)
        if shard["count"]:
            stem = PurePosixPath(name).with_name(shard["stem"]).as_posix()
            counts[stem, int(shard["count"])].append(int(shard["number"]))
    for (stem, count), numbers in counts.items():
        missing = sorted(set(range(count)) - set(numbers))
        if missing:
            what = f"{len(missing)} of the {count} files of {stem} are missing: {listed([f'{n:05}' for n in missing])}"
            raise DataError(what, code="data.missing_file", where=str(root), remedy="fetch them")


def _refuse_several(root: Path, names: list[str]) -> None:
    """Refuse folders that hold several data sets, as some on the hub do."""
    parents = {PurePosixPath(name).parent for name in names}
    sets = sorted({str(parent.parent if parent.name.lower() in SPLIT_WORDS else parent) for parent in parents})
    if len(sets) > 1:
        raise DataError(
            f"holds several data sets: {listed(sets)}",
            code="data.several_sets",
            where=str(root),
            remedy="give one of these folders",
        )
