"""What a pack says about its files: the index (`shards.json`), the hashes of its images, and the manifest.

A pack may have hundreds of gigabytes. When it is opened, the index, the classes and the hashes are verified by the
manifest, of the shards only their sizes. Each image is verified by its own hash whenever it is read, in whatever
process, and `vitral check` hashes whole shards. Packs of format 1 have no hashes; they open as unverified.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core import documents
from vitral.core.errors import ConfigError, DataError, WeightsError
from vitral.core.files import DOCUMENT_BYTES
from vitral.core.manifest import (
    MANIFEST,
    SIGNATURE,
    FileEntry,
    Manifest,
    current_policy,
    hash_files,
    parse_manifest,
    refuse_unsigned,
)
from vitral.core.signature import check_signature
from vitral.data.datasets import urls
from vitral.data.samples import SPLITS, OnFault, Split

INDEX = "shards.json"
DRAFT = "shards.unfinished.json"  # the index while shards are being written
CLASSES = "classes.txt"  # the class of each number in `.cls`, one a line: for us and for other readers
HASHES = "hashes.bin"  # of the images, in the order of the index
FORMAT = 2
AGAIN = "pack the data again"
INDEX_BYTES = 16 * DOCUMENT_BYTES  # that of ImageNet has 80 MB
DIGEST_BYTES = 16  # of an image: the first of its SHA-256
CHUNK = 2**22

Digests = NDArray[np.uint8]  # (N, 16), or (0, 16) if the images are not verified
log = logging.getLogger(__name__)


class Shard(NamedTuple):
    """One tar and the images in it, column by column."""

    file: str
    split: Split
    bytes: int
    names: tuple[str, ...]
    labels: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


class Index(NamedTuple):
    """A dataset in shards, with the classes, notes and fingerprint that it had before it was packed."""

    classes: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str
    shards: tuple[Shard, ...]
    format: int = FORMAT

    def __repr__(self) -> str:
        images, size = sum(len(shard.names) for shard in self.shards), sum(shard.bytes for shard in self.shards)
        return f"Index({images:,} images of {len(self.classes)} classes, {len(self.shards):,} shards, {size:,} bytes)"

    def to_json(self) -> str:
        """JSON with a line for each shard. Names that are not Unicode are kept too."""
        head = {"format": self.format, "classes": self.classes, "notes": self.notes, "fingerprint": self.fingerprint}
        shards = ",\n".join(json.dumps(shard._asdict(), separators=(",", ":")) for shard in self.shards)
        return f'{json.dumps(head, indent=1).removesuffix("}").rstrip()},\n "shards": [\n{shards}\n]}}\n'


def parse_index(text: bytes, where: str) -> Index:
    """The index that `to_json` wrote; anything else is refused, because wrong offsets would give wrong images."""
    try:
        fields = documents.parse_json(text)
        found = int(fields["format"])
        if 1 <= found <= FORMAT:
            classes, notes = tuple(map(str, fields["classes"])), tuple(map(str, fields["notes"]))
            shards = tuple(Shard(**{name: _column(value) for name, value in each.items()}) for each in fields["shards"])
            _check_index(shards, len(classes))
            return Index(classes, notes, str(fields["fingerprint"]), shards, found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"not an index written by vitral: {type(error).__name__} {error}"
        raise DataError(message, code="data.bad_index", where=where, hint=AGAIN) from None
    message = f"format {found}, but this version of vitral reads formats 1 to {FORMAT}"
    raise DataError(message, code="data.unsupported_version", where=where, hint=f"update vitral, or {AGAIN}")


def _column(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_index(shards: Sequence[Shard], classes: int) -> None:
    """Raise ValueError, or the error of the operation that fails, for an invalid index."""
    every: list[str] = []
    for shard in shards:
        if os.path.basename(shard.file) != shard.file or shard.file in {"", ".", ".."}:
            raise ValueError(f"the file {shard.file!r} is in another folder")
        if shard.split not in SPLITS:
            raise ValueError(f"unknown split {shard.split!r}")
        numbers = [*shard.labels, *shard.starts, *shard.lengths, shard.bytes]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"invalid numbers for {shard.file}")
        ends = [start + length for start, length in zip(shard.starts, shard.lengths, strict=True)]
        if len(shard.names) != len(ends) or len(shard.labels) != len(ends):
            raise ValueError(f"columns of {shard.file} differ in length")
        if max(ends, default=0) > shard.bytes or max(shard.labels, default=0) >= classes:
            raise ValueError(f"an image outside {shard.file}, or without a class")
        every += shard.names
    os.fsencode("".join(every))
    if len(set(every)) != len(every) or not every:
        raise ValueError("no images, or two of the same name")


def image_digest(image: bytes) -> bytes:
    """The hash of an image in a pack."""
    return hashlib.sha256(image).digest()[:DIGEST_BYTES]


def check_image(image: bytes, digest: bytes, where: Callable[[], str]) -> None:
    """Reject an image that is not the one that was packed."""
    if image_digest(image) != digest:
        message, hint = "damaged: not the bytes that were packed", f"copy the shard again, or {AGAIN}"
        raise DataError(message, code="data.bad_archive", where=where(), hint=hint)


@dataclass(frozen=True)
class PackContents:
    """The index of a pack, and the hashes of its images in the same order."""

    index: Index
    digests: Digests

    def shard_digests(self) -> dict[str, Digests]:
        """The hashes of the images of each shard, by its file."""
        ends = np.cumsum([len(shard.names) for shard in self.index.shards])[:-1]
        parts = np.split(self.digests, ends) if len(self.digests) else [self.digests] * len(self.index.shards)
        return {shard.file: part for shard, part in zip(self.index.shards, parts, strict=True)}


UNKNOWN = np.zeros((0, DIGEST_BYTES), dtype=np.uint8)


def read_pack(folder: str) -> PackContents:
    """What a pack says about itself, verified by its manifest as the policy says."""
    path = urls.join(folder, INDEX)
    text = urls.read_whole(path, INDEX_BYTES)
    if not current_policy().verify:
        log.info(f"not verified: the files of {folder} were not checked")
        return PackContents(parse_index(text, path), UNKNOWN)
    if not urls.exists(urls.join(folder, MANIFEST)):
        index = parse_index(text, path)
        if index.format > 1:
            message = f"is missing, but a pack of format {index.format} has one; its files cannot be verified"
            hint = f"copy the pack again, or {AGAIN}; --no-verify opens it as it is"
            raise DataError(message, code="data.no_manifest", where=urls.join(folder, MANIFEST), hint=hint)
        log.info(f"unverified: {folder} is a pack of an earlier format without hashes of its files")
        return PackContents(index, UNKNOWN)
    entries = read_entries(folder)
    _check_document(text, INDEX, entries, folder)
    index = parse_index(text, path)
    _check_listed(index, entries, urls.join(folder, MANIFEST))
    _check_document(urls.read_whole(urls.join(folder, CLASSES)), CLASSES, entries, folder)
    hashes = urls.read_whole(urls.join(folder, HASHES), INDEX_BYTES)
    _check_document(hashes, HASHES, entries, folder)
    images = sum(len(shard.names) for shard in index.shards)
    if len(hashes) != images * DIGEST_BYTES:
        raise DataError(f"not {images:,} hashes", code="data.bad_index", where=urls.join(folder, HASHES), hint=AGAIN)
    return PackContents(index, np.frombuffer(hashes, dtype=np.uint8).reshape(images, DIGEST_BYTES))


class PackedImage(NamedTuple):
    """What the index of a pack says about an image in one of its shards."""

    length: int
    label: int
    digest: bytes


def shard_images(path: str, packs: dict[str, PackContents | None]) -> dict[int, PackedImage]:
    """The images of a tar that is a shard of a verified pack, by where they start; none for any other tar.

    `packs` keeps the packs that were read, by their folder, for the tars that follow.
    """
    folder, _, name = path.rpartition("/")
    folder = folder or ("/" if path.startswith("/") else ".")
    if folder not in packs:
        verified = current_policy().verify and urls.exists(urls.join(folder, INDEX))
        packs[folder] = read_pack(folder) if verified else None
    pack = packs[folder]
    shard = next((each for each in pack.index.shards if each.file == name), None) if pack else None
    if pack is None or shard is None or not len(pack.digests):
        return {}
    digests = pack.shard_digests()[name]
    known = zip(shard.lengths, shard.labels, map(bytes, digests), strict=True)
    return {start: PackedImage(*image) for start, image in zip(shard.starts, known, strict=True)}


def not_packed(where: str) -> DataError:
    """The error for an image in a shard of a pack that its index does not list so."""
    hint = f"copy the shard again, or {AGAIN}; --no-verify reads it as it is"
    return DataError(f"not the image that {INDEX} lists", code="data.bad_archive", where=where, hint=hint)


def read_entries(folder: str) -> dict[str, FileEntry]:
    """The files in the manifest of a pack, by name."""
    path = urls.join(folder, MANIFEST)
    try:
        manifest = parse_manifest(urls.read_whole(path, INDEX_BYTES), Manifest, Path(path))
    except WeightsError as error:
        raise DataError(error.message, code="data.bad_index", where=path, hint=AGAIN) from None
    if manifest.kind != "pack":
        message = f"is the manifest of a {manifest.kind}, not of a pack"
        raise DataError(message, code="data.bad_index", where=path, hint=AGAIN)
    return {entry.name: entry for entry in manifest.files}


def _check_listed(index: Index, entries: Mapping[str, FileEntry], where: str) -> None:
    """Reject a manifest that lists other files, or shards of another size, than the index."""
    sizes = {name: entry.bytes for name, entry in entries.items() if name not in (INDEX, CLASSES, HASHES)}
    if sizes != {shard.file: shard.bytes for shard in index.shards} or not {CLASSES, HASHES} <= entries.keys():
        message = f"does not list the files of {INDEX}"
        raise DataError(message, code="data.bad_index", where=where, hint=AGAIN)


def _check_document(content: bytes, name: str, entries: Mapping[str, FileEntry], folder: str) -> None:
    if name not in entries or hashlib.sha256(content).hexdigest() != entries[name].sha256:
        message, hint = f"damaged: its SHA-256 is not that of {MANIFEST}", f"copy it again, or {AGAIN}"
        raise DataError(message, code="data.bad_index", where=urls.join(folder, name), hint=hint)


def is_pack(where: str) -> bool:
    """Whether there is a finished pack at a path or URL."""
    if not urls.is_remote(where):
        return os.path.isfile(os.path.join(where, INDEX))
    return not urls.is_tar(where) and not urls.is_pattern(where) and INDEX in urls.file_sizes(where)


def verify_pack(folder: str, on_fault: OnFault) -> None:
    """Hash every shard of a pack whose size is right, and check its signature if one is required."""
    policy = current_policy()
    if not policy.verify:
        return
    if policy.public_key:
        _check_signature(folder, Path(policy.public_key).expanduser())
    if not urls.exists(urls.join(folder, MANIFEST)):  # of an earlier format
        return
    try:
        entries, sizes = read_entries(folder), urls.file_sizes(folder)
    except DataError:  # opening it has told it
        return
    log.info(f"hashing {len(entries) - 3:,} shards of {sum(entry.bytes for entry in entries.values()) / 1e9:,.1f} GB")
    for name, entry in entries.items():
        path = urls.join(folder, name)
        if sizes.get(name) == entry.bytes and hash_shard(path) != entry.sha256:
            message, hint = f"damaged: its SHA-256 is not that of {MANIFEST}", f"copy it again, or {AGAIN}"
            on_fault(DataError(message, code="data.bad_archive", where=path, hint=hint))


def hash_shard(path: str) -> str:
    """The SHA-256 of a local or remote file."""
    if not urls.is_remote(path):
        return hash_files([Path(path)])
    digest = hashlib.sha256()
    with urls.open_file(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_signature(folder: str, public_key: Path) -> None:
    if urls.is_remote(folder):
        message, hint = "signatures of remote packs are not checked", "copy the pack to this machine"
        raise ConfigError(message, code="config.unsupported", where="--require-signature", hint=hint)
    if not os.path.isfile(os.path.join(folder, MANIFEST)):
        refuse_unsigned(Path(folder))
    check_signature(urls.read_whole(os.path.join(folder, MANIFEST), INDEX_BYTES), Path(folder, SIGNATURE), public_key)
