"""The samples in one tar file: where each image lies and what its label is. Nothing is ever unpacked.

A sample is a run of members whose names agree up to the first dot of the last part: `cat/07.jpg`, `cat/07.cls`. One
of them is the image. The label is in a `.cls`, as a number or a name, or in a `.json` as `"label"`, and a `"split"` may
stand beside it.
"""

import json
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO, NamedTuple

from vitral.core.errors import DataError, format_choices
from vitral.data.datasets.files import is_image, is_litter, suffix
from vitral.data.samples import SPLIT_ALIASES, Split, format_names

COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
MAX_LABEL_BYTES = 1 << 20  # of a file with a label
FETCH = "remove it or fetch it again"


class TarSample(NamedTuple):
    """One image of a tar. A numeric label indexes the classes; no split means that the shard's name may tell it."""

    member: str
    start: int
    length: int
    label: str | int
    split: Split | None


class TarMember(NamedTuple):
    """A member by its name, the key of its sample, and where its bytes are."""

    name: str
    key: str
    start: int
    length: int


def scan_tar(file: BinaryIO, where: str) -> list[TarSample]:
    """Every sample of a tar, from its headers and its labels alone; `where` names it in messages."""
    entries: list[TarSample] = []
    keys: set[str] = set()
    for key, group in groupby(list_members(file, where), key=lambda part: part.key):
        if key in keys:
            hint = "put the files of a sample side by side, and give every sample a key of its own"
            raise DataError(
                "a second sample with the same key", code="data.bad_sample", where=f"{where}/{key}", hint=hint
            )
        keys.add(key)
        entries.append(_entry(file, f"{where}/{key}", list(group)))
    if not entries:
        raise DataError("no images in it", code="data.empty", where=where, hint=FETCH)
    return entries


def list_members(file: BinaryIO, where: str) -> Iterator[TarMember]:
    """The files in a tar that belong to samples, each safe to name."""
    for info in _headers(file, where):
        name = info.name.removeprefix("./")
        _check_safe(info, name, where)
        folder, _, last = name.rpartition("/")
        stem, dot, _ = last.partition(".")
        litter = any(map(is_litter, name.split("/")))
        if info.isfile() and dot and not litter:
            yield TarMember(name, f"{folder}/{stem}" if folder else stem, info.offset_data, info.size)


def _headers(file: BinaryIO, where: str) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar in order. Others may move the place in the file between two of them."""
    opening = file.read(tarfile.BLOCKSIZE)
    for magic, kind in COMPRESSIONS.items():
        if opening.startswith(magic):
            hint = "decompress it: an image in the middle cannot be read from a compressed file"
            raise DataError(f"compressed with {kind}", code="data.compressed_archive", where=where, hint=hint)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            yield from tar
            end = tar.offset
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DataError(f"not a whole tar file: {error}", code="data.bad_archive", where=where, hint=FETCH) from None
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        # tarfile takes a damaged header, or a file cut between two members, for the end.
        raise DataError(f"broken or cut off at byte {end}", code="data.bad_archive", where=where, hint=FETCH)


def _check_safe(info: tarfile.TarInfo, name: str, where: str) -> None:
    hint = "remove it from the tar, or make the tar anew"
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise DataError(f"the name {name!r} leads out of the tar", code="data.unsafe_archive", where=where, hint=hint)
    plain = (info.isfile() and not info.issparse()) or info.isdir()
    if not plain or info.size < 0:
        raise DataError(
            f"{name} is neither a plain file nor a folder", code="data.unsafe_archive", where=where, hint=hint
        )


def _entry(file: BinaryIO, where: str, parts: list[TarMember]) -> TarSample:
    images = [part for part in parts if is_image(part.name)]
    if len(images) != 1:
        found = f"several images: {format_names([part.name for part in images])}" if images else "no image"
        held = "" if images else f" among {format_names([part.name for part in parts])}"
        raise DataError(f"{found}{held}", code="data.bad_sample", where=where, hint="give every sample one image")
    labels: dict[str, TarMember] = {}
    for part in parts:
        ending = suffix(part.name)
        if ending in {".cls", ".json"} and labels.setdefault(ending, part) is not part:
            raise DataError(
                f"two files of labels: {part.name}", code="data.bad_sample", where=where, hint="keep one of them"
            )
    label, split = _read_json(file, where, labels[".json"]) if ".json" in labels else (None, None)
    if ".cls" in labels:
        text = _text(file, where, labels[".cls"]).strip()
        label = int(text) if re.fullmatch("-?[0-9]{1,18}", text) else text
    if label is None or label == "" or (isinstance(label, int) and label < 0):
        found = "no label" if label is None else f"the label {label!r}"
        hint = 'put its class, a name or a number from 0 on, into a .cls, or into a .json as "label"'
        raise DataError(found, code="data.bad_label", where=where, hint=hint)
    return TarSample(images[0].name, images[0].start, images[0].length, label, split)


def _read_json(file: BinaryIO, where: str, part: TarMember) -> tuple[str | int | None, Split | None]:
    """The label and the split in a `.json`, as far as they are there; other fields are the user's own."""
    try:
        fields = json.loads(_text(file, where, part))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{part.name} is not JSON: {error}", code="data.bad_label", where=where, hint="write one object"
        ) from None
    if not isinstance(fields, dict):
        raise DataError(
            f"{part.name} is JSON of another kind", code="data.bad_label", where=where, hint='write {"label": "cat"}'
        )
    label, split = fields.get("label"), fields.get("split")
    if not isinstance(label, str | int | None) or isinstance(label, bool):
        found = f"label: expected text or a number, got {json.dumps(label)[:60]}"
        raise DataError(found, code="data.bad_label", where=where, hint="write one label for each image")
    if split is not None and str(split).lower() not in SPLIT_ALIASES:
        message = f"split: expected {format_choices(SPLIT_ALIASES)}, got {split!r}"
        raise DataError(message, code="data.bad_split", where=where, hint="write one of them, or leave it out")
    return label.strip() if isinstance(label, str) else label, SPLIT_ALIASES[str(split).lower()] if split else None


def _text(file: BinaryIO, where: str, part: TarMember) -> str:
    if part.length > MAX_LABEL_BYTES:
        raise DataError(
            f"{part.name} has {part.length:,} bytes",
            code="data.bad_label",
            where=where,
            hint="a label takes a few; mend it",
        )
    file.seek(part.start)
    try:
        return file.read(part.length).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(
            f"{part.name} is not UTF-8", code="data.bad_label", where=where, hint="save it as UTF-8"
        ) from None
