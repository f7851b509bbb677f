"""The inputs of `vitral predict MODEL IMAGE...`, and the images that they name, found one after the other.

An input is a file, a folder (all images below it), a pattern, a manifest, tar shards, local or remote, the name of a
dataset, or `-` for paths on stdin. Files are sorted naturally: `2.jpg` before `10.jpg`. Nothing is held in a list.
An image is a reference that is read when its turn comes. Tar shards are not unpacked.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from vitral.core.errors import DataError, VitralError
from vitral.core.files import IMAGE_BYTES, outside_error, outside_is_allowed, read_file
from vitral.data.datasets import urls
from vitral.data.datasets.files import (
    Folder,
    Identity,
    ancestors_of,
    identity,
    is_image,
    list_folder,
    read_lines,
    suffix,
    unreadable,
)
from vitral.data.datasets.huggingface import holds_tables
from vitral.data.datasets.manifest import DELIMITERS, MANIFEST_SUFFIXES, read_json_lines, read_table
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.pack_index import (
    DRAFT,
    INDEX,
    PackContents,
    check_image,
    not_packed,
    read_pack,
    shard_images,
)
from vitral.data.datasets.shards import find_tars, list_members, unfinished_pack
from vitral.data.datasets.source import SAMPLE, no_such_path, open_data
from vitral.data.samples import Samples, Store

COLUMN = "path"
T = TypeVar("T")
STDIN = "-"


class ImageSource(Protocol):
    """Where the encoded bytes of an image are."""

    def read(self) -> bytes:
        """The encoded image; raises DataError where there is none."""
        ...


class ImageRef(NamedTuple):
    """An image: its name in the output, and where its bytes are."""

    name: str
    source: ImageSource


@dataclass(frozen=True)
class FileSource:
    """A local file."""

    path: str

    def read(self) -> bytes:
        try:
            return read_file(self.path, IMAGE_BYTES)
        except FileNotFoundError:
            raise DataError("no such file", code="data.not_found", where=self.path, hint="check the path") from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        except ValueError:  # a zero byte, or half a surrogate from JSON
            hint = "write one path per line" if "\0" in self.path else "correct the path"
            raise DataError("not a valid file name", code="data.bad_path", where=self.path, hint=hint) from None


@dataclass(frozen=True)
class Encoded:
    """An image in memory."""

    data: bytes

    def read(self) -> bytes:
        return self.data


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes of a local or remote file; those of a pack are verified by a hash."""

    path: str
    start: int
    length: int
    digest: bytes = b""

    def read(self) -> bytes:
        content = urls.read_range(self.path, self.start, self.length)
        if self.digest:
            check_image(content, self.digest, lambda: self.path)
        return content


@dataclass(frozen=True)
class DatasetImage:
    """An item of a dataset."""

    store: Store
    key: str

    def read(self) -> bytes:
        return self.store.read(self.key)


@dataclass(frozen=True)
class MissingImage:
    """An image that was named and does not exist; reading it raises the error."""

    error: VitralError

    def read(self) -> bytes:
        raise self.error


class UnlistedImages(MissingImage):
    """A folder, list or tar that could not be listed to its end; reading it raises the error."""


def manifest_paths(manifest: str) -> Iterator[str]:
    """The paths of the images of a manifest, in its order."""
    folder, delimiter = os.path.dirname(manifest), DELIMITERS.get(suffix(manifest))
    hint = f"write a line with a {COLUMN} for each"
    empty = DataError("lists no images", code="data.empty", where=manifest, hint=hint)
    lines = read_lines(manifest)
    paths = _from_table(manifest, lines, delimiter) if delimiter else _from_json(manifest, lines)
    return (os.path.join(folder, path) for path in _at_least_one(paths, empty))


def listed_image(manifest: str, path: str) -> ImageRef:
    """An image that a manifest lists; reading it is an error if it is outside of the folder of the manifest."""
    error = None if outside_is_allowed() else outside_error(os.path.abspath(path), os.path.dirname(manifest), manifest)
    return ImageRef(path, MissingImage(error) if error else FileSource(path))


def _at_least_one(items: Iterator[T], error: DataError) -> Iterator[T]:
    """The same items; raises the error if there are none."""
    for first in items:
        yield first
        yield from items
        return
    raise error


def stream_paths(stream: BinaryIO) -> Iterator[str]:
    """The path on each line of a stream, byte for byte; empty lines are skipped."""
    return filter(None, (os.fsdecode(line.rstrip(b"\r\n")) for line in stream))


def _from_table(manifest: str, lines: Iterable[str], delimiter: str) -> Iterator[str]:
    def check(header: list[str]) -> None:
        if header.count(COLUMN) != 1:
            message = f"expected one column {COLUMN!r} in the header, which is {delimiter.join(header)!r}"
            hint = "the first line must name the columns"
            raise DataError(message, code="data.bad_manifest", where=manifest, hint=hint)

    for number, fields in read_table(manifest, lines, delimiter, check):
        yield _path_text(fields[COLUMN], f"{manifest}:{number}")


def _from_json(manifest: str, lines: Iterable[str]) -> Iterator[str]:
    for number, fields in read_json_lines(manifest, lines):
        yield _path_text(fields.get(COLUMN) if isinstance(fields, dict) else fields, f"{manifest}:{number}")


def _path_text(path: object, where: str) -> str:
    if not isinstance(path, str) or not path:
        message, hint = f"{COLUMN}: expected text, got {json.dumps(path)[:60]}", 'write {"path": "cat/1.jpg"}'
        raise DataError(message, code="data.bad_manifest", where=where, hint=hint)
    return path


class GlobSearch(NamedTuple):
    """A pattern, split at slashes, and the positions in it that entries of the current folder may match."""

    pieces: Sequence[str]
    positions: Set[int]

    def literals(self) -> Sequence[str]:
        """The names to look for, if no pattern is among them and the folder need not be listed."""
        names = {self.pieces[position] for position in self._open()}
        return () if any(map(urls.is_glob, names)) else sorted(names)

    def is_recursive(self) -> bool:
        """Whether `**` makes it recursive."""
        return any(map(self._any_depth, self.positions))

    def after(self, name: str) -> "GlobSearch":
        """The search inside the folder of that name."""
        stay = {position for position in self._open() if self._any_depth(position)}
        onward = {position + 1 for position in self._open() - stay if fnmatchcase(name, self.pieces[position])}
        return GlobSearch(self.pieces, stay | onward)

    def is_over(self) -> bool:
        """Whether the whole pattern has matched."""
        return len(self.pieces) in self.positions

    def _open(self) -> set[int]:
        """The positions, and those after a `**` that matches no folder."""
        positions = set(self.positions)
        for position in range(len(self.pieces)):
            if position in positions and self._any_depth(position):
                positions.add(position + 1)
        return positions

    def _any_depth(self, position: int) -> bool:
        return self.pieces[position] == "**" and position + 1 < len(self.pieces)


def find_images(inputs: Iterable[str], stdin: BinaryIO | None) -> Iterator[ImageRef]:
    """The images of all inputs. One that cannot be listed yields a reference with its error, and the rest follow."""
    for each in inputs:
        try:
            yield from _expand_input(each, stdin)
        except DataError as error:
            yield ImageRef(error.where or each, UnlistedImages(error))
        except OSError as error:
            yield ImageRef(each, UnlistedImages(unreadable(each, error)))


def refuse_unlisted(images: Iterable[ImageRef]) -> Iterator[ImageRef]:
    """The same images; raises the error of an input that cannot be listed, whichever shard it would be in."""
    for image in images:
        if isinstance(image.source, UnlistedImages):
            error = image.source.error
            raise DataError(error.message, code=error.code, where=image.name, hint=error.hint) from error
        yield image


def natural_key(name: str) -> tuple[list[str | int], str]:
    """A key that sorts by the numbers within names: `a2` before `a10`."""
    pieces = re.split("([0-9]+)", name)  # text and digits in turn
    return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces)], name


def _expand_input(text: str, stdin: BinaryIO | None) -> Iterator[ImageRef]:
    if text == STDIN:
        if stdin is None:
            hint = "pipe paths into it, one per line"
            raise DataError("stdin is closed", code="data.stdin_closed", where=STDIN, hint=hint)
        return (ImageRef(path, FileSource(path)) for path in stream_paths(stdin))
    if text == SAMPLE or text in NAMED_DATASETS:
        return _dataset_images(text, open_data(text))
    if urls.is_remote(text):
        return remote_images(text)
    if not text:
        hint = "name a file or a folder; a variable of the shell may be empty"
        raise DataError("expected the name of an image, got an empty word", code="data.empty_name", hint=hint)
    path = os.path.expanduser(text)
    if os.path.lexists(path):
        return _images_at_path(path)
    if urls.is_tar(path) and urls.is_pattern(path):
        return tar_images(urls.list_tars(path))
    if urls.BRACES.search(path) and not any(map(_is_there, _glob(path))):  # braces may be part of a name
        return find_images(urls.expand_braces(path), stdin)
    if urls.is_pattern(path):
        hint = "list the folder, and correct the pattern"
        error = DataError("no image matches the pattern", code="data.not_found", where=path, hint=hint)
        return _at_least_one(_glob(path), error)
    error = no_such_path(Path(path))
    if is_image(path):
        return iter([ImageRef(path, MissingImage(error))])
    raise error  # it may have been a folder of many


def _images_at_path(path: str) -> Iterator[ImageRef]:
    """The images of an existing file or folder. A file of any suffix may be an image: its bytes decide."""
    if suffix(path) in MANIFEST_SUFFIXES and not os.path.isdir(path):
        return (listed_image(path, listed) for listed in manifest_paths(path))
    if holds_tables(Path(path)) and not (os.path.isdir(path) and any(map(_is_there, images_below(path)))):
        return _dataset_images(path, open_data(path))
    if os.path.isdir(path):
        hint = "give a folder with JPEG or PNG files"
        error = DataError("contains no images, nor do its folders", code="data.empty", where=path, hint=hint)
        return _at_least_one(images_below(path), error)
    if urls.is_tar(path):
        return tar_images([path])
    if not is_image(path):
        identity(path)  # a broken link may have been a folder of many
    return iter([ImageRef(path, FileSource(path))])


def _dataset_images(where: str, samples: Samples) -> Iterator[ImageRef]:
    """The images of all splits of a dataset."""
    return (ImageRef(f"{where}/{item.name}", DatasetImage(samples.store, item.name)) for item in samples.items)


def _is_there(image: ImageRef) -> bool:
    return not isinstance(image.source, MissingImage)


def tar_images(paths: Iterable[str]) -> Iterator[ImageRef]:
    """The images inside tar files, in their order; those of a shard of a pack are verified by their hashes."""
    packs: dict[str, PackContents | None] = {}
    for path in paths:
        try:
            packed = shard_images(path, packs)
            empty = DataError(
                "contains no images", code="data.empty", where=path, hint="remove it or download it again"
            )
            with urls.open_file(path) as file:
                images = (part for part in list_members(file, path) if is_image(part.name))
                for part in _at_least_one(images, empty):
                    name, known = f"{path}/{part.name}", packed.get(part.start)
                    if packed and (known is None or known.length != part.length):
                        yield ImageRef(name, MissingImage(not_packed(name)))
                    else:
                        digest = known.digest if known else b""
                        yield ImageRef(name, ByteRange(path, part.start, part.length, digest))
        except DataError as error:
            yield ImageRef(error.where or path, UnlistedImages(error))


def pack_images(folder: str) -> Iterator[ImageRef]:
    """The images of a folder that `vitral pack` wrote, by their original names."""
    if INDEX not in urls.file_sizes(folder):
        raise unfinished_pack(folder)
    pack = read_pack(folder)
    digests = pack.shard_digests()
    for shard in pack.index.shards:
        tar, known = urls.join(folder, shard.file), digests[shard.file]
        for number, (name, start, length) in enumerate(zip(shard.names, shard.starts, shard.lengths, strict=True)):
            digest = known[number].tobytes() if len(known) else b""
            yield ImageRef(f"{folder.rstrip('/')}/{name}", ByteRange(tar, start, length, digest))


def remote_images(address: str) -> Iterator[ImageRef]:
    """The images of remote tar shards (`s3://bucket/set/*.tar`), or of a remote pack or folder of tars."""
    tars = find_tars(address)
    return tar_images(tars) if tars else pack_images(address)


def images_below(folder: str, ancestors: tuple[Identity, ...] = ()) -> Iterator[ImageRef]:
    """The images of a folder, then those of its folders; what cannot be listed is reported and skipped."""
    listing = _list(folder, ancestors or ancestors_of(folder))
    if isinstance(listing, ImageRef):
        yield listing
        return
    images = _image_names(listing)
    try:
        if INDEX in listing.others or DRAFT in listing.others:
            yield from pack_images(folder)
        elif listing.folders or images:
            yield from (_file_ref(folder, name) for name in images)
            for name in listing.folders:
                yield from images_below(os.path.join(folder, name), listing.ancestors)
        else:
            yield from tar_images([os.path.join(folder, name) for name in listing.others if urls.is_tar(name)])
    except DataError as error:
        yield ImageRef(error.where or folder, UnlistedImages(error))


def _list(folder: str, ancestors: tuple[Identity, ...]) -> Folder | ImageRef:
    """What the folder holds, in natural order, or the reason why it cannot be listed."""
    try:
        return list_folder(folder, ancestors, natural_key)
    except DataError as error:
        if error.code == "data.link_loop":  # no image is lost with it
            return ImageRef(folder, MissingImage(error))
        return ImageRef(error.where or folder, UnlistedImages(error))


def _image_names(folder: Folder) -> list[str]:
    """The images of a folder. A broken link counts as the image it is named as: it is reported when it is read."""
    return sorted((*folder.images, *filter(is_image, folder.broken_links)), key=natural_key)


def _file_ref(folder: str, name: str) -> ImageRef:
    path = os.path.join(folder, name)
    return ImageRef(path, FileSource(path))


def _glob(pattern: str) -> Iterator[ImageRef]:
    """The images that match a pattern with `*`, `?`, `[`; `**` is any number of folders."""
    root, inner = ("/", pattern.lstrip("/")) if pattern.startswith("/") else ("", pattern)
    return _matches(root, GlobSearch([part for part in inner.split("/") if part], {0}), ())


def _matches(folder: str, search: GlobSearch, above: tuple[Identity, ...]) -> Iterator[ImageRef]:
    """The images below a folder that match; what cannot be listed is reported and skipped."""
    names: Iterable[str] = search.literals()
    if not names:
        listing = _list(folder, (above or ancestors_of(folder)) if search.is_recursive() else ())
        if isinstance(listing, ImageRef):
            yield listing
            return
        names = chain(_image_names(listing), listing.folders, listing.others)
        above = listing.ancestors
    for name in names:
        path, onward = os.path.join(folder, name), search.after(name)
        if onward.is_over():
            yield from _images_of_match(path)
        elif onward.positions and os.path.isdir(path):
            yield from _matches(path, onward, above)


def _images_of_match(path: str) -> Iterator[ImageRef]:
    """The images of a file or folder that matches; other files are skipped."""
    if os.path.isdir(path):
        return images_below(path)
    if urls.is_tar(path):
        return tar_images([path])
    return iter([ImageRef(path, FileSource(path))] if is_image(path) and os.path.lexists(path) else [])
