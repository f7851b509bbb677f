"""A dataset in tar shards: a pack is opened by its index, other tars by scanning their headers.

In order: the samples in one tar, the store, and opening the dataset. Nothing is unpacked.

A sample is a run of members whose names agree up to the first dot of the last part: `cat/07.jpg`, `cat/07.cls`. One
of them is the image. The label is in a `.cls`, as a number or a name, or in a `.json` as `"label"`, which may also hold
a `"split"`.
"""

import json
import logging
import os
import re
import tarfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, repeat
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.errors import DataError, format_choices
from vitral.core.manifest import MANIFEST
from vitral.data.datasets import urls
from vitral.data.datasets.files import is_image, is_litter, parse_json, suffix
from vitral.data.datasets.pack_index import (
    AGAIN,
    CLASSES,
    DIGEST_BYTES,
    DRAFT,
    HASHES,
    INDEX,
    UNKNOWN,
    Digests,
    PackContents,
    PackedImage,
    Shard,
    check_image,
    not_packed,
    read_entries,
    read_pack,
    shard_images,
)
from vitral.data.samples import (
    SPLIT_ALIASES,
    Item,
    OnFault,
    PackedNames,
    Row,
    Samples,
    Split,
    StratifiedSplit,
    build_samples,
    by_split_and_name,
    format_names,
    normalize_unicode,
    refuse,
    reorder_classes,
)

Integers = NDArray[np.int64]

COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
MAX_LABEL_BYTES = 1 << 20  # of a file with a label
DOWNLOAD = "remove it or download it again"
NO_DIGEST = bytes(DIGEST_BYTES)


class TarSample(NamedTuple):
    """One image of a tar. A numeric label indexes the classes; without a split, the name of the shard may give it."""

    member: str
    start: int
    length: int
    label: str | int
    split: Split | None


class TarMember(NamedTuple):
    """A member by its name, the key of its sample, and its byte range."""

    name: str
    key: str
    start: int
    length: int


class TarScan(NamedTuple):
    """The sound samples of a tar, and its faults in order."""

    samples: list[TarSample]
    faults: list[DataError]


def scan_tar(file: BinaryIO, where: str) -> TarScan:
    """All samples of a tar, from its headers and labels alone; `where` names it in messages."""
    samples: list[TarSample] = []
    faults: list[DataError] = []
    keys: set[str] = set()
    try:
        for key, group in groupby(list_members(file, where, faults.append), key=lambda member: member.key):
            members, place = list(group), f"{where}/{key}"
            try:
                if key in keys:
                    message, hint = "a second sample with the same key", "keep the files of a sample together"
                    raise DataError(message, code="data.bad_sample", where=place, hint=f"{hint}, under one key")
                keys.add(key)
                samples.append(_read_sample(file, place, members))
            except DataError as fault:
                faults.append(fault)
    except DataError as fault:  # nothing can be read beyond it; the sample before it may be incomplete
        faults.append(fault)
    if not samples and not faults:
        faults.append(DataError("contains no images", code="data.empty", where=where, hint=DOWNLOAD))
    return TarScan(samples, faults)


def list_members(file: BinaryIO, where: str, on_fault: OnFault = refuse) -> Iterator[TarMember]:
    """The files in a tar that belong to samples, with safe names."""
    for info in _headers(file, where):
        name = info.name.removeprefix("./")
        if fault := _unsafe(info, name, where):
            if info.size < 0:  # the next header cannot be found
                raise fault
            on_fault(fault)
            continue
        folder, _, last = name.rpartition("/")
        stem, dot, _ = last.partition(".")
        if info.isfile() and dot and not any(map(is_litter, name.split("/"))):
            yield TarMember(name, f"{folder}/{stem}" if folder else stem, info.offset_data, info.size)


def _headers(file: BinaryIO, where: str) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar in order. The caller may seek in the file between two of them."""
    opening = file.read(tarfile.BLOCKSIZE)
    for magic, kind in COMPRESSIONS.items():
        if opening.startswith(magic):
            hint = "decompress it: a compressed tar does not allow random access"
            raise DataError(f"compressed with {kind}", code="data.compressed_archive", where=where, hint=hint)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            yield from tar
            end = tar.offset
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:  # the last by chained long names
        message = f"not a complete tar file: {error}"
        raise DataError(message, code="data.bad_archive", where=where, hint=DOWNLOAD) from None
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        # tarfile treats a damaged header, or a file cut between two members, as the end.
        raise DataError(f"damaged or truncated at byte {end}", code="data.bad_archive", where=where, hint=DOWNLOAD)


def _unsafe(info: tarfile.TarInfo, name: str, where: str) -> DataError | None:
    plain = (info.isfile() and not info.issparse()) or info.isdir()
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        message = f"the name {name!r} points outside the tar"
    elif not plain or info.size < 0:
        message = f"{name} is neither a regular file nor a folder"
    else:
        return None
    return DataError(message, code="data.unsafe_archive", where=where, hint="remove it, or create the tar again")


def _read_sample(file: BinaryIO, where: str, members: list[TarMember]) -> TarSample:
    images = [member for member in members if is_image(member.name)]
    if len(images) != 1:
        names = format_names([member.name for member in images or members])
        message = f"several images: {names}" if images else f"no image among {names}"
        raise DataError(message, code="data.bad_sample", where=where, hint="give every sample one image")
    label_files = [member for member in members if suffix(member.name) in {".cls", ".json"}]
    labels = {suffix(member.name): member for member in label_files}
    if len(labels) < len(label_files):
        message = f"several label files: {format_names([each.name for each in label_files])}"
        raise DataError(message, code="data.bad_sample", where=where, hint="keep one of them")
    label, split = _read_json(file, where, labels[".json"]) if ".json" in labels else (None, None)
    if ".cls" in labels:
        text = _read_text(file, where, labels[".cls"]).strip()
        label = int(text) if re.fullmatch("-?[0-9]{1,18}", text) else text
    if label is None or label == "" or (isinstance(label, int) and label < 0):
        message = "no label" if label is None else f"invalid label {label!r}"
        hint = 'write its class, a name or a number from 0, into a .cls, or into a .json as "label"'
        raise DataError(message, code="data.bad_label", where=where, hint=hint)
    return TarSample(images[0].name, images[0].start, images[0].length, label, split)


def _read_json(file: BinaryIO, where: str, member: TarMember) -> tuple[str | int | None, Split | None]:
    """The label and the split in a `.json`, if they are there; other fields are ignored."""
    hint = f'write {{"label": "cat"}} into {member.name}'
    fields = parse_json(_read_text(file, where, member), where, "data.bad_label", hint)
    if not isinstance(fields, dict):
        raise DataError("not a JSON object", code="data.bad_label", where=where, hint=hint)
    label, split = fields.get("label"), fields.get("split")
    if not isinstance(label, str | int | None) or isinstance(label, bool):
        message = f"label: expected text or a number, got {json.dumps(label)[:60]}"
        raise DataError(message, code="data.bad_label", where=where, hint=hint)
    if split is not None and str(split).lower() not in SPLIT_ALIASES:
        message = f"split: expected {format_choices(SPLIT_ALIASES)}, got {split!r}"
        raise DataError(message, code="data.bad_split", where=where, hint="use one of them, or leave it out")
    return label.strip() if isinstance(label, str) else label, SPLIT_ALIASES[str(split).lower()] if split else None


def _read_text(file: BinaryIO, where: str, member: TarMember) -> str:
    message, hint = f"{member.name} is too large for a label: {member.length:,} bytes", "correct it"
    if member.length <= MAX_LABEL_BYTES:
        file.seek(member.start)
        try:
            return file.read(member.length).decode("utf-8-sig")
        except UnicodeDecodeError:
            message, hint = f"{member.name} is not UTF-8", "save it as UTF-8"
    raise DataError(message, code="data.bad_label", where=where, hint=hint)


@dataclass(frozen=True, eq=False)
class ShardStore:
    """A store of images inside tars, in a few arrays: millions of Python objects would be copied into every worker."""

    paths: tuple[str, ...]
    names: PackedNames  # sorted by their bytes
    shards: Integers
    starts: Integers
    lengths: Integers
    digests: Digests = field(default_factory=lambda: UNKNOWN)  # of a pack, whose images are verified when they are read

    def read(self, name: str) -> bytes:
        at = self._find(name)
        image = urls.read_range(self.paths[self.shards[at]], int(self.starts[at]), int(self.lengths[at]))
        if len(self.digests) and (digest := self.digests[at].tobytes()) != NO_DIGEST:
            check_image(image, digest, lambda: self.address(name))
        return image

    def address(self, name: str) -> str:
        return f"{self.paths[self.shards[self._find(name)]]}: {name}"

    def size(self, name: str) -> int:
        return int(self.lengths[self._find(name)])

    def _find(self, name: str) -> int:
        sought = os.fsencode(name)
        at = bisect_left(range(len(self.names)), sought, key=self.names.encoded)
        assert self.names.encoded(at) == sought, name  # names come from the items
        return at


def build_store(
    paths: Sequence[str], names: Sequence[str], *ranges: Sequence[int], digests: Digests = UNKNOWN
) -> ShardStore:
    """The store of the named images; `ranges` are the index of the path, the start and the length of each image."""
    order = sorted(range(len(names)), key=lambda at: os.fsencode(names[at]))
    shards, starts, lengths = (np.array(column, dtype=np.int64)[order] for column in ranges)
    found = digests[order] if len(digests) else digests
    return ShardStore(tuple(paths), PackedNames.of(names[at] for at in order), shards, starts, lengths, found)


THREADS = 8  # shards scanned at a time; remote ones spend most of it waiting
log = logging.getLogger(__name__)


def names_shards(path: str) -> bool:
    """Whether the path is a URL, a tar, a pattern of tars, a pack, or a folder of tars without folders or images."""
    if urls.is_remote(path):
        return True
    if not os.path.isdir(path):
        return urls.is_tar(path) and (os.path.exists(path) or urls.is_pattern(path))
    with os.scandir(path) as entries:
        seen = [entry for entry in entries if not entry.name.startswith(".")]
    if any(entry.name in (INDEX, DRAFT) for entry in seen):
        return True
    beside = any(entry.is_dir() or is_image(entry.name) for entry in seen)
    return not beside and any(urls.is_tar(entry.name) for entry in seen)


def open_shards(where: str, val_split: StratifiedSplit, on_fault: OnFault = refuse) -> Samples:
    """The samples of a pack, or of the tars at a path, a pattern or a URL."""
    tars = find_tars(where)
    return _from_tars(where, tars, val_split, on_fault) if tars else _from_index(where, on_fault)


def find_tars(where: str) -> list[str]:
    """The tars at a path, a pattern or a URL; none for a pack, which has an index."""
    if where.startswith(("http://", "https://")) and not urls.is_tar(where):
        hint = "download it and give the file or folder; only tar shards (.tar) are read from a URL"
        raise DataError("a URL, but vitral does not download data", code="data.remote_address", where=where, hint=hint)
    urls.check_protocol(where)
    if (urls.is_tar(where) or urls.is_pattern(where)) and not os.path.isdir(where):
        return urls.list_tars(where)
    beside = urls.file_sizes(where)
    found = [urls.join(where, name) for name in beside if urls.is_tar(name)]
    if INDEX in beside:
        return []
    if DRAFT in beside:
        raise unfinished_pack(where)
    if found and HASHES in beside and MANIFEST in beside and INDEX in read_entries(where):
        message, hint = f"a pack without its {INDEX}", f"copy it again, or {AGAIN}"
        raise DataError(message, code="data.missing_file", where=urls.join(where, INDEX), hint=hint)
    if not found:
        hint = "give the folder of the shards, or a pattern that matches them"
        raise DataError("contains no tar files", code="data.empty", where=where, hint=hint)
    return found


def unfinished_pack(where: str) -> DataError:
    """The error for a pack that was stopped."""
    hint = "run vitral pack again with the same data: it continues where it stopped"
    return DataError("an unfinished pack", code="data.unfinished_pack", where=where, hint=hint)


def _from_index(where: str, on_fault: OnFault) -> Samples:
    """A pack has the items, in the order, that the dataset had before it was packed."""
    beside, pack = urls.file_sizes(where), read_pack(where)
    shards: list[Shard] = []
    for shard in pack.index.shards:
        if beside.get(shard.file) == shard.bytes:
            shards.append(shard)
        else:
            found = f"{beside[shard.file]:,}" if shard.file in beside else "none"
            message, hint = f"expected {shard.bytes:,} bytes, found {found}", f"download it again, or {AGAIN}"
            code = "data.bad_archive" if shard.file in beside else "data.missing_file"
            on_fault(DataError(message, code=code, where=urls.join(where, shard.file), hint=hint))
    items = [item for shard in shards for item in map(Item, shard.names, shard.labels, repeat(shard.split))]
    digests = pack.shard_digests()
    store = build_store(
        [urls.join(where, shard.file) for shard in shards],
        [item.name for item in items],
        [number for number, shard in enumerate(shards) for _ in shard.names],
        [start for shard in shards for start in shard.starts],
        [length for shard in shards for length in shard.lengths],
        digests=np.concatenate([UNKNOWN, *(digests[shard.file] for shard in shards)]),
    )
    return Samples(where, pack.index.classes, tuple(sorted(items, key=by_split_and_name)), store, pack.index.notes)


def _from_tars(where: str, paths: Sequence[str], val_split: StratifiedSplit, on_fault: OnFault) -> Samples:
    prefix = os.path.commonprefix(paths)  # noqa: RUF071, commonpath breaks the // of an address
    parent = prefix[: prefix.rfind("/") + 1]
    if urls.exists(f"{parent}{DRAFT}"):
        raise unfinished_pack(parent)
    log.info("reading the headers of %s tars; vitral pack makes an index that avoids this", f"{len(paths):,}")
    classes = _listed_classes(f"{parent}{CLASSES}", on_fault)
    found: list[tuple[int, TarSample, str]] = []  # the index of the path, the sample, its class
    digests: list[bytes] = []
    packs: dict[str, PackContents | None] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for number, (samples, faults) in enumerate(pool.map(_scan, paths)):
            for fault in faults:  # in the order of the paths, whichever thread found them
                on_fault(fault)
            packed = shard_images(paths[number], packs)
            if lost := len(packed) - sum(sample.start in packed for sample in samples):
                message, hint = f"lacks {lost} images that {INDEX} lists", f"copy it again, or {AGAIN}"
                on_fault(DataError(message, code="data.bad_archive", where=paths[number], hint=hint))
            for sample in samples:
                if packed and not _is_packed(sample, packed):
                    on_fault(not_packed(f"{paths[number]}/{sample.member}"))
                elif label := _class_name(sample, classes, paths[number], on_fault):
                    found.append((number, sample, label))
                    digests.append(packed[sample.start].digest if packed else b"")
    names = [f"{paths[number].removeprefix(parent)}/{sample.member}" for number, sample, _ in found]
    known = [sample.split or _split_of(paths[number].removeprefix(parent)) for number, sample, _ in found]
    splits = _splits(where, names, known, on_fault)
    starts, lengths = [sample.start for _, sample, _ in found], [sample.length for _, sample, _ in found]
    numbers = [number for number, _, _ in found]
    store = build_store(paths, names, numbers, starts, lengths, digests=_digest_rows(digests))
    rows = map(Row, names, [label for _, _, label in found], splits)
    built = build_samples(where, rows, store, val_split, on_fault=on_fault)
    if not classes and all(isinstance(sample.label, int) for _, sample, _ in found):
        classes = tuple(sorted(built.classes, key=int))
    return reorder_classes(built, classes, keep_empty=True)


def _is_packed(sample: TarSample, packed: Mapping[int, PackedImage]) -> bool:
    """Whether a sample of a shard has the place and the label that the index of its pack gives."""
    known = packed.get(sample.start)
    return known is not None and (known.length, known.label) == (sample.length, sample.label)


def _digest_rows(digests: Sequence[bytes]) -> Digests:
    """The hashes of images, (N, 16). Zeros stand for images of tars that belong to no pack."""
    if not any(digests):
        return UNKNOWN
    joined = b"".join(digest or NO_DIGEST for digest in digests)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def _scan(path: str) -> TarScan:
    try:
        with urls.open_file(path) as file:
            return scan_tar(file, path)
    except DataError as fault:  # the file cannot be opened or read
        return TarScan([], [fault])


def _listed_classes(path: str, on_fault: OnFault) -> tuple[str, ...]:
    """The classes that a file beside the shards lists, one a line; none if there is no such file, or a faulty one."""
    if not urls.exists(path):
        return ()
    lines = urls.read_whole(path).decode("utf-8-sig", errors="surrogateescape").rstrip("\r\n").split("\n")
    classes = tuple(normalize_unicode(line.removesuffix("\r")) for line in lines)
    if len(set(classes)) != len(classes) or "" in classes:
        message, hint = "a repeated class or an empty line", "write one class a line, in the order of their numbers"
        on_fault(DataError(message, code="data.bad_class_list", where=path, hint=hint))
        return ()
    return classes


def _class_name(sample: TarSample, classes: tuple[str, ...], path: str, on_fault: OnFault) -> str:
    """The class of an image: a number is an index of the listed classes, or the name itself if none are listed.

    It is empty if it is not one of them.
    """
    if not classes:
        return str(sample.label)
    if isinstance(sample.label, int) and sample.label < len(classes):
        return classes[sample.label]
    if isinstance(sample.label, str) and normalize_unicode(sample.label) in classes:
        return sample.label
    message = f"the label {sample.label!r} is not one of the {len(classes)} classes in {CLASSES}"
    hint = f"correct the label or {CLASSES}; numbers start at 0"
    on_fault(DataError(message, code="data.bad_label", where=f"{path}/{sample.member}", hint=hint))
    return ""


def _splits(where: str, names: Sequence[str], known: Sequence[Split | None], on_fault: OnFault) -> list[Split]:
    """The split of each image, train if it has none; it is a fault if only some have one."""
    without = [name for name, split in zip(names, known, strict=True) if split is None]
    if without and len(without) < len(names):
        message = f"some images have a split and others do not: {format_names(without)}"
        hint = "name every shard after its split (train-000.tar, val-000.tar), or none of them"
        on_fault(DataError(message, code="data.bad_split", where=where, hint=hint))
    return [split or "train" for split in known]


@cache
def _split_of(shard: str) -> Split | None:
    """The split in the name of a shard: train-000, imagenet-train-000, validation/000."""
    words = re.findall("[a-z]+", shard.lower())
    return next((SPLIT_ALIASES[word] for word in words if word in SPLIT_ALIASES), None)
