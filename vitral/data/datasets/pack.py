"""`vitral pack`: any source into tar shards in the form of WebDataset, with an index and a manifest beside them.

Every byte is planned before the first is written, so a pack that was stopped continues with the missing shards and
ends in the same bytes. A file gets its final name only when it is complete, and the index is last. The hashes of a
shard are recorded as soon as it is written: one that was damaged later is written again.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.core.jsonl import JsonlLog, read_lines
from vitral.core.manifest import MANIFEST, SIGNATURE, Manifest, file_entries, own_files
from vitral.core.storage import STORAGE, FileDigest, file_digest, make_folders, open_atomically, write_error
from vitral.data.datasets.files import is_image, suffix
from vitral.data.datasets.pack_index import (
    CLASSES,
    DIGEST_BYTES,
    DRAFT,
    HASHES,
    INDEX,
    Index,
    Shard,
    hash_shard,
    image_digest,
    read_entries,
    read_pack,
)
from vitral.data.datasets.source import open_data
from vitral.data.decoding.header import recognize
from vitral.data.samples import SPLITS, Samples, Split, format_names

BLOCK = tarfile.BLOCKSIZE
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
SHARD_SIZE = 256_000_000
RECORDS = "hashes.unfinished.jsonl"  # of the shards that are written, while the pack is unfinished
HALF = ".tmp"  # the suffix of a file while it is written


def parse_size(text: str) -> int:
    """The bytes of a size such as `256MB`."""
    match = re.fullmatch(r"([0-9]+) ?([A-Z]*)", text.strip().upper())
    if not match or match[2] not in UNITS or not int(match[1]):
        message = f"expected a size such as 256MB or 1GB, got {text!r}"
        raise ConfigError(message, code="config.wrong_type", where="--shard-size")
    return int(match[1]) * UNITS[match[2]]


def plan_shards(samples: Samples, shard_size: int) -> Index:
    """What the shards will hold, to the byte. Only a shard with a single image may exceed the size."""
    if any("\n" in name for name in samples.classes):
        message = "a class with a line break in its name"
        raise DataError(message, code="data.bad_class_name", where=samples.where, hint="rename it")
    shards = tuple(shard for split in SPLITS for shard in _shards(samples, split, shard_size))
    return Index(samples.classes, samples.notes, samples.fingerprint(), shards)


def shard_members(
    samples: Samples, shard: Shard, first: int, tell: Callable[[int], None]
) -> Iterator[tuple[str, bytes]]:
    """The files of a shard in order, by name: each sample's label, its image unchanged, and its origin.

    Samples are numbered from `first`, so that the keys of a split are unique across its shards.
    """
    for number, (name, label, length) in enumerate(zip(shard.names, shard.labels, shard.lengths, strict=True), first):
        image = samples.store.read(name)
        if len(image) != length:
            message = f"had {length} bytes when the pack was planned, has {len(image)} now"
            raise DataError(message, code="data.changed", where=name, hint="do not change the data while packing")
        ending = suffix(name) if is_image(name) else f".{recognize(image, name).lower()}"
        yield f"{number:08}.cls", str(label).encode()
        yield f"{number:08}{ending}", image
        yield f"{number:08}.json", _origin(name, samples.classes[label], shard.split)
        tell(1)


def _shards(samples: Samples, split: Split, shard_size: int) -> Iterator[Shard]:
    """The shards of a split, its images ordered by a hash of their names, which mixes the classes in every shard."""
    rows: list[tuple[str, int, int, int]] = []  # name, label, start, length
    end = number = 0
    for item in sorted(samples.of(split), key=lambda item: hashlib.sha256(os.fsencode(item.name)).digest()):
        length = samples.store.size(item.name)
        origin = _origin(item.name, samples.classes[item.label], split)
        taken = 2 * BLOCK + BLOCK + _padded(length) + BLOCK + _padded(len(origin))
        if rows and _tar_size(end + taken) > shard_size:
            yield _shard(split, number, rows, end)
            rows, end, number = [], 0, number + 1
        rows.append((item.name, item.label, end + 3 * BLOCK, length))  # after .cls and its own header
        end += taken
    if rows:
        yield _shard(split, number, rows, end)


def _shard(split: Split, number: int, rows: list[tuple[str, int, int, int]], end: int) -> Shard:
    names, labels, starts, lengths = zip(*rows, strict=True)
    return Shard(f"{split}-{number:05}.tar", split, _tar_size(end), names, labels, starts, lengths)


def _origin(name: str, label: str, split: Split) -> bytes:
    return json.dumps({"name": name, "label": label, "split": split}).encode()


def _padded(length: int, block: int = BLOCK) -> int:
    return -(-length // block) * block


def _tar_size(end: int) -> int:
    """The bytes of a tar whose last member ends there: two empty blocks follow, padded to a whole record."""
    return _padded(end + 2 * BLOCK, tarfile.RECORDSIZE)


def ignore_progress(count: int) -> None:
    """The default callback."""


def pack(
    data: str | Path | Samples,
    out: str | Path,
    shard_size: int = SHARD_SIZE,
    tell: Callable[[int], None] = ignore_progress,
) -> Index:
    """Write a dataset as tar shards: `vitral.pack("photos/", "shards/")`.

    The data is whatever `vitral.train` takes by name, or opened already. `tell` is called with the number of images
    just written.
    """
    samples, out = data if isinstance(data, Samples) else open_data(str(data)), Path(out).expanduser()
    if samples.label_sets:
        message, hint = "its images have several right labels each, a pack has one", "evaluate on it as it is"
        raise DataError(message, code="data.several_labels", where=samples.where, hint=hint)
    _check_destination(samples.where, out)
    index = plan_shards(samples, shard_size)
    try:
        _check_contents(out, index)
        _write_pack(samples, out, index, tell)
    except OSError as error:
        then = "run the same command again: it continues after the finished shards"
        raise write_error(error, out, then=then) from None
    return index


class ShardDigest(NamedTuple):
    """The SHA-256 of a shard, and the hashes of its images one after the other."""

    sha256: str
    images: bytes


def _write_pack(samples: Samples, out: Path, index: Index, tell: Callable[[int], None]) -> None:
    kept = _intact_shards(out, index)
    missing = [shard for shard in index.shards if shard.file not in kept]
    if not missing and _is_complete(out):
        tell(sum(len(shard.names) for shard in index.shards))
        STORAGE.remove(out / RECORDS)
        return
    needed, free = sum(shard.bytes for shard in missing), shutil.disk_usage(out).free
    if needed > free:
        message, hint = f"the shards need {needed:,} bytes, {free:,} are free", "free space, or use another disk"
        raise VitralError(message, code="file.no_space", where=out, hint=hint)
    STORAGE.replace_file(out / DRAFT, index.to_json().encode())
    if kept:
        lines = (json.dumps(_record(file, digest)).encode() + b"\n" for file, digest in kept.items())
        STORAGE.replace_file(out / RECORDS, b"".join(lines))
    for name in (INDEX, MANIFEST):  # they exist if a shard was damaged later
        (out / name).unlink(missing_ok=True)
    packed: Counter[Split] = Counter()
    for shard in index.shards:
        if shard.file in kept:
            tell(len(shard.names))
        else:
            kept[shard.file] = _write_shard(out, shard, shard_members(samples, shard, packed[shard.split], tell))
        packed[shard.split] += len(shard.names)
    documents = {
        CLASSES: os.fsencode("".join(f"{name}\n" for name in samples.classes)),
        HASHES: b"".join(kept[shard.file].images for shard in index.shards),
    }
    for name, content in documents.items():
        STORAGE.replace_file(out / name, content)
    documents[INDEX] = index.to_json().encode()
    digests = {name: file_digest(content) for name, content in documents.items()}
    digests |= {shard.file: FileDigest(shard.bytes, kept[shard.file].sha256) for shard in index.shards}
    STORAGE.replace_file(out / MANIFEST, Manifest(kind="pack", files=file_entries(digests)).to_json().encode())
    STORAGE.rename(out / DRAFT, out / INDEX)
    STORAGE.remove(out / RECORDS)


def _intact_shards(out: Path, index: Index) -> dict[str, ShardDigest]:
    """The finished shards whose bytes are those that were written."""
    known = _read_records(out) | _listed_digests(out)
    found = {}
    for shard in index.shards:
        path, digest = out / shard.file, known.get(shard.file)
        if digest and path.is_file() and path.stat().st_size == shard.bytes and hash_shard(str(path)) == digest.sha256:
            found[shard.file] = digest
    return found


def _is_complete(out: Path) -> bool:
    with own_files():  # verified, whatever the command line says
        try:
            return len(read_pack(str(out)).digests) > 0
        except DataError:
            return False


def _listed_digests(out: Path) -> dict[str, ShardDigest]:
    """The hashes in a finished pack; none if it is not intact."""
    if not (out / INDEX).is_file() or not _is_complete(out):
        return {}
    with own_files():
        entries, images = read_entries(str(out)), read_pack(str(out)).shard_digests()
    return {file: ShardDigest(entries[file].sha256, found.tobytes()) for file, found in images.items()}


def _read_records(out: Path) -> dict[str, ShardDigest]:
    """The hashes of the shards that an unfinished pack has; what is not a record is ignored, and written again."""
    found = {}
    for line in read_lines(out / RECORDS):
        with suppress(ValueError, KeyError, TypeError):
            fields = json.loads(line)
            found[str(fields["file"])] = ShardDigest(str(fields["sha256"]), bytes.fromhex(fields["images"]))
    return found


def _record(file: str, digest: ShardDigest) -> dict[str, str]:
    return {"file": file, "sha256": digest.sha256, "images": digest.images.hex()}


def _check_destination(data: str, out: Path) -> None:
    if out.parts and out.parts[0].endswith(":"):
        message, hint = "a URL, but shards are written to local folders", "give a local folder, and copy it afterwards"
        raise ConfigError(message, code="config.unsupported", where=out, hint=hint)
    if Path(data).is_dir() and out.resolve().is_relative_to(Path(data).resolve()):
        hint = "give a folder outside it"
        raise ConfigError(f"is inside the data, {data}", code="config.conflict", where=out, hint=hint)


def _check_contents(out: Path, index: Index) -> None:
    """Create the folder, or check that it holds nothing but shards of this index, finished or not."""
    make_folders(out)
    text = index.to_json().encode()
    found = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    begun = found & {INDEX, DRAFT}
    ours = [CLASSES, DRAFT, HASHES, INDEX, MANIFEST, RECORDS, SIGNATURE, *(shard.file for shard in index.shards)]
    allowed = {*ours, *(f"{name}{HALF}" for name in ours)} if begun else {f"{DRAFT}{HALF}"}
    if any((out / name).read_bytes() != text for name in begun):
        message = "contains a pack of other data, of an earlier format, or with another shard size"
    elif found - allowed:
        message = f"contains other files: {format_names(sorted(found - allowed))}"
    else:
        return
    raise ConfigError(message, code="config.path_exists", where=out, hint="give another folder, or empty this one")


class _Hashing:
    """A file whose bytes are hashed while they are written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()


def _write_shard(out: Path, shard: Shard, files: Iterator[tuple[str, bytes]]) -> ShardDigest:
    """Write a shard, and record its hashes."""
    images = bytearray()
    with open_atomically(out / shard.file) as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="w", format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
            for name, data in files:
                info = tarfile.TarInfo(name)  # without user and time: the same images give the same bytes
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
                images += b"" if name.endswith((".cls", ".json")) else image_digest(data)
    digest = ShardDigest(hashing.digest.hexdigest(), bytes(images))
    assert len(images) == DIGEST_BYTES * len(shard.names)
    with closing(JsonlLog(out / RECORDS)) as records:
        records.append(_record(shard.file, digest))
    return digest
