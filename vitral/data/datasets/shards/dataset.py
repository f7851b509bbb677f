"""A dataset in tar shards: a pack is opened by its index, other tars by scanning their headers."""

import logging
import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.errors import DataError
from vitral.data.datasets.shards.index import AGAIN, CLASSES, DRAFT, INDEX, Shard, parse_index
from vitral.data.datasets.shards.tar import TarSample, scan_tar
from vitral.data.datasets.shards.urls import (
    check_protocol,
    exists,
    file_sizes,
    is_pattern,
    is_tar,
    join,
    list_tars,
    open_file,
    read_range,
    read_whole,
)
from vitral.data.samples import (
    SPLIT_ALIASES,
    SPLITS,
    Item,
    PackedNames,
    Row,
    Samples,
    Split,
    StratifiedSplit,
    build_samples,
    format_names,
    normalize_unicode,
    renumber_classes,
)

Integers = NDArray[np.int64]


class ByteRanges(NamedTuple):
    """The name of each image, the number of its shard, and its byte range."""

    names: Sequence[str]
    shards: Sequence[int]
    starts: Sequence[int]
    lengths: Sequence[int]


@dataclass(frozen=True, eq=False)
class ShardStore:
    """A store of images inside tars, in a few arrays: millions of Python objects would be copied into every worker."""

    paths: tuple[str, ...]
    names: PackedNames  # sorted by their bytes
    shards: Integers
    starts: Integers
    lengths: Integers

    def read(self, name: str) -> bytes:
        at = self._find(name)
        return read_range(self.paths[self.shards[at]], int(self.starts[at]), int(self.lengths[at]))

    def address(self, name: str) -> str:
        return f"{self.paths[self.shards[self._find(name)]]}: {name}"

    def size(self, name: str) -> int:
        return int(self.lengths[self._find(name)])

    def _find(self, name: str) -> int:
        sought = os.fsencode(name)
        at = bisect_left(range(len(self.names)), sought, key=self.names.encoded)
        assert self.names.encoded(at) == sought, name  # names come from the items
        return at


def build_store(paths: Sequence[str], ranges: ByteRanges) -> ShardStore:
    """The store of images in the tars at these paths, which `ranges` numbers from 0."""
    order = sorted(range(len(ranges.names)), key=lambda at: os.fsencode(ranges.names[at]))
    names = PackedNames.of(ranges.names[at] for at in order)
    columns = [np.array(column, dtype=np.int64)[order] for column in ranges[1:]]
    return ShardStore(tuple(paths), names, *columns)


THREADS = 8  # shards scanned at a time; a remote one is mostly waited for
log = logging.getLogger(__name__)


def open_shards(where: str, val_split: StratifiedSplit) -> Samples:
    """The samples of a pack, or of the tars that an address stands for."""
    if where.startswith(("http://", "https://")) and not is_tar(where):
        hint = "fetch it and give the folder; only tar shards (.tar) are read from afar"
        raise DataError("an address, and vitral downloads nothing", code="data.remote_address", where=where, hint=hint)
    check_protocol(where)
    if (is_tar(where) or is_pattern(where)) and not os.path.isdir(where):
        return _from_tars(where, list_tars(where), val_split)
    beside = file_sizes(where)
    if INDEX in beside:
        return _from_index(where, beside)
    found = [join(where, name) for name in beside if is_tar(name)]
    if DRAFT in beside:
        raise _unfinished(where)
    if not found:
        raise DataError(
            "no tar files in it",
            code="data.empty",
            where=where,
            hint="give the folder of the shards, or a pattern of them",
        )
    return _from_tars(where, found, val_split)


def _from_index(where: str, beside: dict[str, int]) -> Samples:
    """A pack has the items, in the order, that the set had before it was packed."""
    index = parse_index(read_whole(join(where, INDEX)), join(where, INDEX))
    for shard in index.shards:
        if beside.get(shard.file) != shard.bytes:
            found = f"{beside[shard.file]:,}" if shard.file in beside else "none"
            message = f"expected {shard.bytes:,} bytes, found {found}"
            raise DataError(
                message,
                code="data.bad_archive" if shard.file in beside else "data.missing_file",
                where=join(where, shard.file),
                hint=f"fetch it again, or {AGAIN}",
            )
    items = [
        item
        for split in SPLITS
        for item in sorted(item for shard in index.shards if shard.split == split for item in _items(shard))
    ]
    ranges = ByteRanges(
        [name for shard in index.shards for name in shard.names],
        [number for number, shard in enumerate(index.shards) for _ in shard.names],
        [start for shard in index.shards for start in shard.starts],
        [length for shard in index.shards for length in shard.lengths],
    )
    store = build_store([join(where, shard.file) for shard in index.shards], ranges)
    return Samples(where, index.classes, tuple(items), store, index.notes)


def _items(shard: Shard) -> Iterator[Item]:
    return map(Item, shard.names, shard.labels, repeat(shard.split))


def _unfinished(where: str) -> DataError:
    hint = "run vitral pack again with the same data: it goes on where it stopped"
    return DataError("a pack that was not finished", code="data.unfinished_pack", where=where, hint=hint)


def _from_tars(where: str, paths: Sequence[str], val_split: StratifiedSplit) -> Samples:
    prefix = os.path.commonprefix(paths)  # noqa: RUF071, commonpath breaks the // of an address
    parent = prefix[: prefix.rfind("/") + 1]
    if exists(f"{parent}{DRAFT}"):
        raise _unfinished(parent)
    log.info("reading the headers of %s tars; vitral pack makes an index that spares this", f"{len(paths):,}")
    with ThreadPoolExecutor(THREADS) as pool:
        scans = list(pool.map(_scan, paths))
    classes = _listed_classes(f"{parent}{CLASSES}")
    found = [(path, entry) for path, entries in zip(paths, scans, strict=True) for entry in entries]
    names = [f"{path.removeprefix(parent)}/{entry.member}" for path, entry in found]
    labels = [_class_name(entry, classes, path) for path, entry in found]
    splits = _splits(where, names, [entry.split or _split_of(path.removeprefix(parent)) for path, entry in found])
    numbers = [number for number, entries in enumerate(scans) for _ in entries]
    starts, lengths = [entry.start for _, entry in found], [entry.length for _, entry in found]
    store = build_store(paths, ByteRanges(names, numbers, starts, lengths))
    samples = build_samples(where, map(Row, names, labels, splits), store, val_split)
    if not classes and all(isinstance(entry.label, int) for _, entry in found):
        classes = tuple(sorted(samples.classes, key=int))
    return _reordered(samples, classes) if classes else samples


def _scan(path: str) -> list[TarSample]:
    with open_file(path) as file:
        return scan_tar(file, path)


def _listed_classes(path: str) -> tuple[str, ...]:
    """The classes that a file beside the shards lists, a line for each number; none where there is no file."""
    if not exists(path):
        return ()
    try:
        lines = read_whole(path).decode("utf-8-sig", errors="surrogateescape").rstrip("\r\n").split("\n")
    except UnicodeDecodeError:
        raise DataError("not UTF-8", code="data.bad_class_list", where=path, hint="save it as UTF-8") from None
    classes = tuple(normalize_unicode(line.removesuffix("\r")) for line in lines)
    if len(set(classes)) != len(classes) or "" in classes:
        hint = "write a line for each class, in the order of the numbers in .cls"
        raise DataError(
            "a class that is there twice, or an empty line", code="data.bad_class_list", where=path, hint=hint
        )
    return classes


def _class_name(entry: TarSample, classes: tuple[str, ...], path: str) -> str:
    """The class of an image: a number counts the listed classes, or is itself the name where none are listed."""
    if not classes:
        return str(entry.label)
    if isinstance(entry.label, int) and entry.label < len(classes):
        return classes[entry.label]
    if isinstance(entry.label, str) and normalize_unicode(entry.label) in classes:
        return entry.label
    message = f"the label {entry.label!r} is none of the {len(classes)} classes in {CLASSES}"
    raise DataError(
        message,
        code="data.bad_label",
        where=f"{path}/{entry.member}",
        hint=f"correct the label or {CLASSES}; numbers start at 0",
    )


def _splits(where: str, names: Sequence[str], known: Sequence[Split | None]) -> list[Split]:
    """The split of each image, train where none has one; some with and some without are refused."""
    without = [name for name, split in zip(names, known, strict=True) if split is None]
    if without and len(without) < len(names):
        message = f"images without a split, where others have one: {format_names(without)}"
        hint = "name every shard after its split (train-000.tar, val-000.tar), or none of them"
        raise DataError(message, code="data.bad_split", where=where, hint=hint)
    return [split or "train" for split in known]


@cache
def _split_of(shard: str) -> Split | None:
    """What the first word that is a split stands for: train-000, imagenet-train-000, validation/000."""
    words = re.findall("[a-z]+", shard.lower())
    return next((SPLIT_ALIASES[word] for word in words if word in SPLIT_ALIASES), None)


def _reordered(samples: Samples, classes: tuple[str, ...]) -> Samples:
    """The same samples with these classes, in this order; a note names those without images."""
    absent = [name for name in classes if name not in samples.classes]
    return renumber_classes(samples, classes, [f"no images at all: {format_names(absent)}"] if absent else [])
