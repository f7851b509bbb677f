"""`vitral pack`: any source into tar shards in the form of WebDataset, with an index beside them.

Every byte is planned before the first is written, so a pack that was stopped goes on with the shards that are missing
and ends in the same bytes. A file has its final name only once it is whole, and the index gets its own last.
"""

import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from vitral.data.samples import Samples, Split
from vitral.data.sources.labels import listed
from vitral.data.sources.shards.index import CLASSES, DRAFT, INDEX, Index, Shard
from vitral.data.sources.shards.plan import members, plan
from vitral.errors import ConfigError, VitralError

SHARD_SIZE = 256_000_000
HALF = ".tmp"  # how the name of a file ends while it is written

Tell = Callable[[int], None]


def unheard(count: int) -> None:
    """For those who do not listen to the progress."""


def pack(samples: Samples, out: Path, shard_size: int = SHARD_SIZE, tell: Tell = unheard) -> Index:
    """Write the samples as shards into the folder `out`; `tell` is called with the number of images just done."""
    _refuse_places(samples.where, out)
    index = plan(samples, shard_size)
    with writing(out):
        _refuse_strangers(out, index)
        missing = {shard.file for shard in index.shards if not _is_finished(out, shard)}
        if missing or not (out / INDEX).exists():
            _check_room(out, sum(shard.bytes for shard in index.shards if shard.file in missing))
            _write(out / DRAFT, index.to_json().encode())
            (out / INDEX).unlink(missing_ok=True)  # it was there if a shard was damaged afterwards
        packed: Counter[Split] = Counter()
        for shard in index.shards:
            if shard.file in missing:
                _write_shard(out / shard.file, members(samples, shard, packed[shard.split], tell))
            else:
                tell(len(shard.names))
            packed[shard.split] += len(shard.names)
        if (out / DRAFT).exists():
            _write(out / CLASSES, os.fsencode("".join(f"{name}\n" for name in samples.classes)))
            (out / DRAFT).replace(out / INDEX)
    return index


def _refuse_places(data: str, out: Path) -> None:
    if out.parts and out.parts[0].endswith(":"):
        remedy = "give a folder here, and copy it there afterwards"
        raise ConfigError(
            "an address, and shards are written to this machine",
            code="config.unsupported",
            where=str(out),
            remedy=remedy,
        )
    if Path(data).is_dir() and out.resolve().is_relative_to(Path(data).resolve()):
        raise ConfigError(
            f"lies inside the data, {data}", code="config.conflict", where=str(out), remedy="give a folder beside it"
        )


def _refuse_strangers(out: Path, index: Index) -> None:
    """Make the folder, or see that it holds nothing but shards of this very index, finished or not."""
    out.mkdir(parents=True, exist_ok=True)
    text = index.to_json().encode()
    found = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    begun = found & {INDEX, DRAFT}
    if any((out / name).read_bytes() != text for name in begun):
        what = "holds a pack of other data, or of another shard size"
        raise ConfigError(
            what, code="config.path_exists", where=str(out), remedy="give another folder, or empty this one"
        )
    ours = [CLASSES, DRAFT, INDEX, *(shard.file for shard in index.shards)]
    allowed = {*ours, *(f"{name}{HALF}" for name in ours)} if begun else {f"{DRAFT}{HALF}"}
    if strangers := sorted(found - allowed):
        what = f"holds something else: {listed(strangers)}"
        raise ConfigError(
            what, code="config.path_exists", where=str(out), remedy="give another folder, or empty this one"
        )


def _check_room(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        what = f"the shards take {needed:,} bytes, and {free:,} are free"
        raise VitralError(
            what, code="file.no_space", where=str(out), remedy="make room, or give a folder on another disk"
        )


def _is_finished(out: Path, shard: Shard) -> bool:
    path = out / shard.file
    return path.is_file() and path.stat().st_size == shard.bytes


def _write_shard(path: Path, files: Iterator[tuple[str, bytes]]) -> None:
    with _whole(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
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
def writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "mend that and run the same command again: it goes on from the shards that are finished"
        what = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise VitralError(what, code="file.write_failed", where=str(error.filename or out), remedy=remedy) from None
