"""`vitral pack`: any source into tar shards in the form of WebDataset, with an index beside them.

Every byte is planned before the first is written, so a pack that was stopped goes on with the shards that are missing
and ends in the same bytes. A file has its final name only once it is whole, and the index gets its own last.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from vitral.data.decoder.kind import recognise
from vitral.data.samples import SPLITS, Samples, Split
from vitral.data.sources.files import is_image, suffix
from vitral.data.sources.labels import listed
from vitral.data.sources.shards.index import CLASSES, DRAFT, INDEX, Index, Shard
from vitral.errors import ConfigError, DataError, VitralError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
HALF = ".tmp"  # how the name of a file ends while it is written
BLOCK = tarfile.BLOCKSIZE


def byte_count(text: str) -> int:
    """The bytes that a size such as `256MB` stands for."""
    match = re.fullmatch(r"([0-9]+) ?([A-Z]*)", text.strip().upper())
    if not match or match[2] not in UNITS or not int(match[1]):
        raise ConfigError(f"expected a size such as 256MB or 1GB, got {text!r}", where="shard size")
    return int(match[1]) * UNITS[match[2]]


def pack(samples: Samples, out: Path, shard_size: int, tell: Callable[[int], None]) -> Index:
    """Write the samples as shards into the folder `out`; `tell` is called with the number of images just done."""
    if out.parts and out.parts[0].endswith(":"):
        remedy = "give a folder here, and copy it there afterwards"
        raise ConfigError("an address, and shards are written to this machine", where=str(out), remedy=remedy)
    if Path(samples.where).is_dir() and out.resolve().is_relative_to(Path(samples.where).resolve()):
        raise ConfigError(f"lies inside the data, {samples.where}", where=str(out), remedy="give a folder beside it")
    index = plan(samples, shard_size)
    with _writing(out):
        _prepare(out, index)
        missing = {shard.file for shard in index.shards if not _is_finished(out, shard)}
        _check_room(out, sum(shard.bytes for shard in index.shards if shard.file in missing))
        packed: Counter[Split] = Counter()
        for shard in index.shards:
            if shard.file in missing:
                _write_shard(out / shard.file, members(samples, shard, packed[shard.split], tell))
            else:
                tell(len(shard.names))
            packed[shard.split] += len(shard.names)
        _write(out / CLASSES, os.fsencode("".join(f"{name}\n" for name in samples.classes)))
        (out / DRAFT).replace(out / INDEX)
    return index


def plan(samples: Samples, shard_size: int) -> Index:
    """What the shards will hold, to the byte. A shard is larger than asked only where one image is."""
    if any("\n" in name for name in samples.classes):
        raise DataError("a class with a line break in its name", where=samples.where, remedy="rename it")
    shards = tuple(shard for split in SPLITS for shard in _shards(samples, split, shard_size))
    return Index(samples.classes, samples.notes, samples.fingerprint(), shards)


def members(samples: Samples, shard: Shard, first: int, tell: Callable[[int], None]) -> Iterator[tuple[str, bytes]]:
    """The files of a shard in order, by name: each sample's label, its image byte for byte, and where it came from.

    Samples are numbered from `first` on, so that no key of a split is in two shards.
    """
    for number, (name, label, length) in enumerate(zip(shard.names, shard.labels, shard.lengths, strict=True), first):
        image = samples.store.read(name)
        if len(image) != length:
            what = f"had {length} bytes when the pack was planned, has {len(image)} now"
            raise DataError(what, where=name, remedy="pack when nobody changes the data")
        ending = suffix(name) if is_image(name) else f".{recognise(image, name).lower()}"
        yield f"{number:08}.cls", str(label).encode()
        yield f"{number:08}{ending}", image
        yield f"{number:08}.json", _origin(name, samples.classes[label], shard.split)
        tell(1)


def _shards(samples: Samples, split: Split, shard_size: int) -> Iterator[Shard]:
    """The shards of a split, its images in an order drawn from their names: no shard holds one class alone."""
    rows: list[tuple[str, int, int, int]] = []  # name, label, start, length
    end = number = 0
    for item in sorted(samples.of(split), key=lambda item: hashlib.sha256(os.fsencode(item.name)).digest()):
        length = samples.store.size(item.name)
        origin = _origin(item.name, samples.classes[item.label], split)
        taken = 2 * BLOCK + BLOCK + _padded(length) + BLOCK + _padded(len(origin))
        if rows and _tar_size(end + taken) > shard_size:
            yield _shard(split, number, rows, end)
            rows, end, number = [], 0, number + 1
        rows.append((item.name, item.label, end + 3 * BLOCK, length))  # behind .cls and its own header
        end += taken
    if rows:
        yield _shard(split, number, rows, end)


def _shard(split: Split, number: int, rows: list[tuple[str, int, int, int]], end: int) -> Shard:
    names, labels, starts, lengths = zip(*rows, strict=True)
    return Shard(f"{split}-{number:05}.tar", split, _tar_size(end), names, labels, starts, lengths)


def _origin(name: str, label: str, split: Split) -> bytes:
    return json.dumps({"name": name, "label": label, "split": split}).encode()


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _tar_size(end: int) -> int:
    """The bytes of a tar whose last member ends there: two empty blocks follow, and then as many as fill a record."""
    return -(-(end + 2 * BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _prepare(out: Path, index: Index) -> None:
    """Make the folder ready for the shards of this index, unless it holds anything else."""
    out.mkdir(parents=True, exist_ok=True)
    ours = {CLASSES, DRAFT, INDEX, *(shard.file for shard in index.shards)}
    found = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    text = index.to_json().encode()
    begun = [name for name in (INDEX, DRAFT) if name in found]
    if any((out / name).read_bytes() != text for name in begun):
        what = "holds a pack of other data, or of another shard size"
        raise ConfigError(what, where=str(out), remedy="give another folder, or empty this one")
    allowed = {*ours, *(f"{name}{HALF}" for name in ours)} if begun else {f"{DRAFT}{HALF}"}
    strangers = sorted(found - allowed)
    if strangers:
        what = f"holds something else: {listed(strangers)}"
        raise ConfigError(what, where=str(out), remedy="give another folder, or empty this one")
    if INDEX in begun:
        (out / INDEX).replace(out / DRAFT)  # until every shard has been looked at
    else:
        _write(out / DRAFT, text)


def _check_room(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        what = f"the shards take {needed:,} bytes, and {free:,} are free"
        raise VitralError(what, where=str(out), remedy="make room, or give a folder on another disk")


def _is_finished(out: Path, shard: Shard) -> bool:
    path = out / shard.file
    return path.is_file() and path.stat().st_size == shard.bytes


def _write_shard(path: Path, files: Iterator[tuple[str, bytes]]) -> None:
    with _whole(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)  # of no user and no time: the same images give the same bytes
            info.size = len(data)
            tar.addfile(info, BytesIO(data))


def _write(path: Path, data: bytes) -> None:
    with _whole(path) as file:
        file.write(data)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name when all of it is on the disk, and is gone when that fails."""
    half = path.with_name(f"{path.name}{HALF}")
    try:
        with half.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "mend that and run the same command again: it goes on from the shards that are finished"
        what = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise VitralError(what, where=str(error.filename or out), remedy=remedy) from None
