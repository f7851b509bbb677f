"""`vitral pack`: any source into tar shards in the form of WebDataset, with an index beside them.

Every byte is planned before the first is written, so a pack that was stopped goes on with the shards that are missing
and ends in the same bytes. A file has its final name only once it is whole, and the index gets its own last.

What a pack will hold, to the byte, before the first is written.
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

from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.core.storage import STORAGE, open_atomically, os_error_message
from vitral.data.datasets.files import is_image, suffix
from vitral.data.datasets.shards.index import CLASSES, DRAFT, INDEX, Index, Shard
from vitral.data.decoding.header import recognize
from vitral.data.samples import SPLITS, Samples, Split, format_names

BLOCK = tarfile.BLOCKSIZE
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_size(text: str) -> int:
    """The bytes that a size such as `256MB` stands for."""
    match = re.fullmatch(r"([0-9]+) ?([A-Z]*)", text.strip().upper())
    if not match or match[2] not in UNITS or not int(match[1]):
        raise ConfigError(
            f"expected a size such as 256MB or 1GB, got {text!r}", code="config.wrong_type", where="shard size"
        )
    return int(match[1]) * UNITS[match[2]]


def plan_shards(samples: Samples, shard_size: int) -> Index:
    """What the shards will hold, to the byte. A shard is larger than asked only where one image is."""
    if any("\n" in name for name in samples.classes):
        raise DataError(
            "a class with a line break in its name", code="data.bad_class_name", where=samples.where, hint="rename it"
        )
    shards = tuple(shard for split in SPLITS for shard in _shards(samples, split, shard_size))
    return Index(samples.classes, samples.notes, samples.fingerprint(), shards)


def shard_members(
    samples: Samples, shard: Shard, first: int, tell: Callable[[int], None]
) -> Iterator[tuple[str, bytes]]:
    """The files of a shard in order, by name: each sample's label, its image byte for byte, and where it came from.

    Samples are numbered from `first` on, so that no key of a split is in two shards.
    """
    for number, (name, label, length) in enumerate(zip(shard.names, shard.labels, shard.lengths, strict=True), first):
        image = samples.store.read(name)
        if len(image) != length:
            message = f"had {length} bytes when the pack was planned, has {len(image)} now"
            raise DataError(message, code="data.changed", where=name, hint="pack when nobody changes the data")
        ending = suffix(name) if is_image(name) else f".{recognize(image, name).lower()}"
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


SHARD_SIZE = 256_000_000
HALF = ".tmp"  # how the name of a file ends while it is written

Progress = Callable[[int], None]


def no_progress(count: int) -> None:
    """For those who do not listen to the progress."""


def pack(samples: Samples, out: Path, shard_size: int = SHARD_SIZE, tell: Progress = no_progress) -> Index:
    """Write the samples as shards into the folder `out`; `tell` is called with the number of images just done."""
    _refuse_places(samples.where, out)
    index = plan_shards(samples, shard_size)
    with report_write_errors(out):
        _refuse_strangers(out, index)
        missing = {shard.file for shard in index.shards if not _is_finished(out, shard)}
        if missing or not (out / INDEX).exists():
            _check_room(out, sum(shard.bytes for shard in index.shards if shard.file in missing))
            _write(out / DRAFT, index.to_json().encode())
            (out / INDEX).unlink(missing_ok=True)  # it was there if a shard was damaged afterwards
        packed: Counter[Split] = Counter()
        for shard in index.shards:
            if shard.file in missing:
                _write_shard(out / shard.file, shard_members(samples, shard, packed[shard.split], tell))
            else:
                tell(len(shard.names))
            packed[shard.split] += len(shard.names)
        if (out / DRAFT).exists():
            _write(out / CLASSES, os.fsencode("".join(f"{name}\n" for name in samples.classes)))
            (out / INDEX).unlink(missing_ok=True)
            STORAGE.rename(out / DRAFT, out / INDEX)
    return index


def _refuse_places(data: str, out: Path) -> None:
    if out.parts and out.parts[0].endswith(":"):
        hint = "give a folder here, and copy it there afterwards"
        raise ConfigError(
            "an address, and shards are written to this machine",
            code="config.unsupported",
            where=out,
            hint=hint,
        )
    if Path(data).is_dir() and out.resolve().is_relative_to(Path(data).resolve()):
        raise ConfigError(
            f"lies inside the data, {data}", code="config.conflict", where=out, hint="give a folder beside it"
        )


def _refuse_strangers(out: Path, index: Index) -> None:
    """Make the folder, or see that it holds nothing but shards of this very index, finished or not."""
    out.mkdir(parents=True, exist_ok=True)
    text = index.to_json().encode()
    found = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    begun = found & {INDEX, DRAFT}
    if any((out / name).read_bytes() != text for name in begun):
        message = "holds a pack of other data, or of another shard size"
        raise ConfigError(message, code="config.path_exists", where=out, hint="give another folder, or empty this one")
    ours = [CLASSES, DRAFT, INDEX, *(shard.file for shard in index.shards)]
    allowed = {*ours, *(f"{name}{HALF}" for name in ours)} if begun else {f"{DRAFT}{HALF}"}
    if strangers := sorted(found - allowed):
        message = f"holds something else: {format_names(strangers)}"
        raise ConfigError(message, code="config.path_exists", where=out, hint="give another folder, or empty this one")


def _check_room(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        message = f"the shards take {needed:,} bytes, and {free:,} are free"
        raise VitralError(message, code="file.no_space", where=out, hint="make room, or give a folder on another disk")


def _is_finished(out: Path, shard: Shard) -> bool:
    path = out / shard.file
    return path.is_file() and path.stat().st_size == shard.bytes


def _write_shard(path: Path, files: Iterator[tuple[str, bytes]]) -> None:
    with open_atomically(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)  # of no user and no time: the same images give the same bytes
            info.size = len(data)
            tar.addfile(info, BytesIO(data))


def _write(path: Path, data: bytes) -> None:
    with open_atomically(path) as file:
        file.write(data)


@contextmanager
def report_write_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "mend that and run the same command again: it goes on from the shards that are finished"
        message = f"cannot be written: {os_error_message(error)}"
        raise VitralError(message, code="file.write_failed", where=error.filename or out, hint=hint) from None
