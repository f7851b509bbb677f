"""What a pack will hold, to the byte, before the first is written."""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator

from vitral.data.decoder.kind import recognise
from vitral.data.samples import SPLITS, Samples, Split
from vitral.data.sources.files import is_image, suffix
from vitral.data.sources.shards.index import Index, Shard
from vitral.errors import ConfigError, DataError

BLOCK = tarfile.BLOCKSIZE
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def byte_count(text: str) -> int:
    """The bytes that a size such as `256MB` stands for."""
    match = re.fullmatch(r"([0-9]+) ?([A-Z]*)", text.strip().upper())
    if not match or match[2] not in UNITS or not int(match[1]):
        raise ConfigError(
            f"expected a size such as 256MB or 1GB, got {text!r}", code="config.wrong_type", where="shard size"
        )
    return int(match[1]) * UNITS[match[2]]


def plan(samples: Samples, shard_size: int) -> Index:
    """What the shards will hold, to the byte. A shard is larger than asked only where one image is."""
    if any("\n" in name for name in samples.classes):
        raise DataError(
            "a class with a line break in its name", code="data.bad_class_name", where=samples.where, remedy="rename it"
        )
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
            raise DataError(what, code="data.changed", where=name, remedy="pack when nobody changes the data")
        ending = suffix(name) if is_image(name) else f".{recognise(image, name).lower()}"
        yield f"{number:08}.cls", str(label).encode()
        yield f"{number:08}{ending}", image
        yield f"{number:08}.json", _origin(name, samples.classes[label], shard.split)
        tell(1)


def _shards(samples: Samples, split: Split, shard_size: int) -> Iterator[Shard]:
    """The shards of a split, its images in an order drawn from their names: classes are mixed in every shard."""
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
