"""What `vitral predict MODEL IMAGE...` is given: words that stand for images, found one after the other.

A word is a file, a folder (all images below it), a pattern, a manifest, tar shards here or afar, the name of a data
set, or `-` for paths on stdin. Folders are read one at a time, in the order of numbers: `2.jpg` before `10.jpg`.

Paths that stand in a manifest or come on stdin, one at a time however many there are.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

from vitral.core.errors import DataError
from vitral.data.datasets.files import (
    Folder,
    Identity,
    ancestors_of,
    identity,
    is_image,
    list_folder,
    suffix,
    unreadable,
)
from vitral.data.datasets.huggingface import holds_tables
from vitral.data.datasets.manifest import DELIMITERS, MANIFEST_SUFFIXES, read_json_lines, read_table
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.shards.index import DRAFT, INDEX
from vitral.data.datasets.shards.urls import BRACES, expand_braces, is_glob, is_pattern, is_remote, is_tar, list_tars
from vitral.data.datasets.source import SAMPLE, no_such_path, open_data
from vitral.data.samples import Samples
from vitral.inference.image_refs import (
    DatasetImage,
    FileSource,
    ImageRef,
    MissingImage,
    UnlistedImages,
    pack_images,
    remote_images,
    tar_images,
)

COLUMN = "path"


def manifest_paths(manifest: str) -> Iterator[str]:
    """The path of each image that a manifest lists, in its order."""
    folder, empty = os.path.dirname(manifest), True
    try:
        with open(manifest, encoding="utf-8-sig", newline="") as file:
            delimiter = DELIMITERS.get(suffix(manifest))
            for path in _from_table(manifest, file, delimiter) if delimiter else _from_json(manifest, file):
                empty = False
                yield os.path.join(folder, path)
    except OSError as error:
        raise unreadable(manifest, error) from None
    except UnicodeDecodeError:
        raise DataError("not UTF-8", code="data.bad_manifest", where=manifest, hint="save it as UTF-8") from None
    if empty:
        raise DataError(
            "lists no images", code="data.empty", where=manifest, hint=f"write a line with a {COLUMN} for each"
        )


def stream_paths(stream: BinaryIO) -> Iterator[str]:
    """The path on each line of a stream, to the letter; empty lines are none."""
    for line in stream:
        path = os.fsdecode(line.rstrip(b"\r\n"))
        if path:
            yield path


def _from_table(manifest: str, file: TextIO, delimiter: str) -> Iterator[str]:
    def check(header: list[str]) -> None:
        if header.count(COLUMN) != 1:
            message = f"expected one column {COLUMN!r} in the header, which is {delimiter.join(header)!r}"
            raise DataError(
                message, code="data.bad_manifest", where=manifest, hint="let the first line name the columns"
            )

    for number, fields in read_table(manifest, file, delimiter, check):
        yield _path_text(fields[COLUMN], f"{manifest}:{number}")


def _from_json(manifest: str, file: TextIO) -> Iterator[str]:
    for number, fields in read_json_lines(manifest, file):
        yield _path_text(fields.get(COLUMN) if isinstance(fields, dict) else fields, f"{manifest}:{number}")


def _path_text(path: object, where: str) -> str:
    if not isinstance(path, str) or not path:
        found = json.dumps(path)[:60]
        raise DataError(
            f"{COLUMN}: expected text, got {found}",
            code="data.bad_manifest",
            where=where,
            hint='write {"path": "cat/1.jpg"}',
        )
    return path


STDIN = "-"


class GlobSearch(NamedTuple):
    """A pattern, piece by piece, and the pieces that what lies in the folder at hand may match: `**` leaves several."""

    pieces: Sequence[str]
    places: Set[int]

    def literals(self) -> Sequence[str]:
        """The names to look at, where they are known without a look into the folder."""
        wanted = {self.pieces[place] for place in self._open()}
        return () if any(map(is_glob, wanted)) else sorted(wanted)

    def goes_deeper(self) -> bool:
        """Whether it goes on however deep the folders are."""
        return any(map(self._any_depth, self.places))

    def after(self, name: str) -> "GlobSearch":
        """What is searched in the folder of that name; it is over if the name itself is all that was sought."""
        stay = {place for place in self._open() if self._any_depth(place)}
        onward = {place + 1 for place in self._open() - stay if fnmatchcase(name, self.pieces[place])}
        return GlobSearch(self.pieces, stay | onward)

    def is_over(self) -> bool:
        return len(self.pieces) in self.places

    def _open(self) -> set[int]:
        """The places, and those that follow where `**` stands for no folder at all."""
        found = set(self.places)
        for place in range(len(self.pieces)):
            if place in found and self._any_depth(place):
                found.add(place + 1)
        return found

    def _any_depth(self, place: int) -> bool:
        return self.pieces[place] == "**" and place + 1 < len(self.pieces)


def find_images(words: Iterable[str], stdin: BinaryIO | None) -> Iterator[ImageRef]:
    """The images that the words stand for. What cannot be listed is among them as Unlisted, and the rest goes on."""
    for word in words:
        try:
            yield from _expand_input(word, stdin)
        except DataError as error:
            yield ImageRef(error.where or word, UnlistedImages(error))
        except OSError as error:
            yield ImageRef(word, UnlistedImages(unreadable(word, error)))


def refuse_unlisted(images: Iterable[ImageRef]) -> Iterator[ImageRef]:
    """The same images for an output that is kept: a list that ends too early is an error, whoever's share it is in."""
    for image in images:
        if isinstance(image.source, UnlistedImages):
            error = image.source.error
            raise DataError(error.message, code=error.code, where=image.name, hint=error.hint) from error
        yield image


def natural_key(name: str) -> tuple[list[str | int], str]:
    """A key that sorts by the numbers within names: `a2` before `a10`."""
    pieces = re.split("([0-9]+)", name)  # text and digits in turn
    return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces)], name


def _expand_input(word: str, stdin: BinaryIO | None) -> Iterator[ImageRef]:
    if word == STDIN:
        if stdin is None:
            raise DataError(
                "stdin is closed", code="data.stdin_closed", where=STDIN, hint="pipe paths into it, one a line"
            )
        return (ImageRef(path, FileSource(path)) for path in stream_paths(stdin))
    if word == SAMPLE or word in NAMED_DATASETS:
        return _dataset_images(word, open_data(word))
    if is_remote(word):
        return remote_images(word)
    if not word:
        hint = "name a file or a folder; a variable of the shell may be empty"
        raise DataError("expected the name of an image, got an empty word", code="data.empty_name", hint=hint)
    path = os.path.expanduser(word)
    if os.path.lexists(path):
        return _images_at_path(path)
    if is_tar(path) and is_pattern(path):
        return tar_images(list_tars(path))
    if BRACES.search(path) and not any(map(_is_there, _glob(path))):  # they may be letters of a name
        return find_images(expand_braces(path), stdin)
    if is_pattern(path):
        return _pattern_images(path)
    error = no_such_path(Path(path))
    if is_image(path):
        return iter([ImageRef(path, MissingImage(error))])
    raise error  # it may have been a folder of many


def _images_at_path(path: str) -> Iterator[ImageRef]:
    """The images of a file or folder that was named itself: of a file, the bytes decide what it is."""
    if suffix(path) in MANIFEST_SUFFIXES and not os.path.isdir(path):
        return (ImageRef(listed, FileSource(listed)) for listed in manifest_paths(path))
    if holds_tables(Path(path)) and not (os.path.isdir(path) and _has_images(path)):
        return _dataset_images(path, open_data(path))
    if os.path.isdir(path):
        return _folder_images(path)
    if is_tar(path):
        return tar_images([path])
    if not is_image(path):
        identity(path)  # a broken link may have been a folder of many
    return iter([ImageRef(path, FileSource(path))])


def _dataset_images(where: str, samples: Samples) -> Iterator[ImageRef]:
    """All images of a data set, whatever they are there for."""
    return (ImageRef(f"{where}/{item.name}", DatasetImage(samples.store, item.name)) for item in samples.items)


def _folder_images(path: str) -> Iterator[ImageRef]:
    first = True
    for image in images_below(path):
        first = False
        yield image
    if first:
        hint = "give a folder with JPEG or PNG"
        yield ImageRef(
            path,
            UnlistedImages(DataError("no images in it or in its folders", code="data.empty", where=path, hint=hint)),
        )


def _has_images(folder: str) -> bool:
    """Whether any image lies in the folder or below it."""
    return any(map(_is_there, images_below(folder)))


def _is_there(image: ImageRef) -> bool:
    return not isinstance(image.source, MissingImage | UnlistedImages)


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
            yield from tar_images([os.path.join(folder, name) for name in listing.others if is_tar(name)])
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


def _pattern_images(pattern: str) -> Iterator[ImageRef]:
    """The images that a pattern with `*`, `?`, `[` stands for; `**` is any number of folders."""
    first = True
    for image in _glob(pattern):
        first = False
        yield image
    if first:
        hint = "look what is there, mend the pattern"
        raise DataError("no image has a name like this", code="data.not_found", where=pattern, hint=hint)


def _glob(pattern: str) -> Iterator[ImageRef]:
    root, inner = ("/", pattern.lstrip("/")) if pattern.startswith("/") else ("", pattern)
    return _matches(root, GlobSearch([part for part in inner.split("/") if part], {0}), ())


def _matches(folder: str, search: GlobSearch, above: tuple[Identity, ...]) -> Iterator[ImageRef]:
    """The images below a folder that are searched; what cannot be listed is told and passed by."""
    names: Iterable[str] = search.literals()
    if not names:
        listing = _list(folder, (above or ancestors_of(folder)) if search.goes_deeper() else ())
        if isinstance(listing, ImageRef):
            yield listing
            return
        names = chain(_image_names(listing), listing.folders, listing.others)
        above = listing.ancestors
    for name in names:
        path, onward = os.path.join(folder, name), search.after(name)
        if onward.is_over():
            yield from _images_of_match(path)
        elif onward.places and os.path.isdir(path):
            yield from _matches(path, onward, above)


def _images_of_match(path: str) -> Iterator[ImageRef]:
    """The images of a file or folder that has a name like the one sought; other files are left out."""
    if os.path.isdir(path):
        return images_below(path)
    if is_tar(path):
        return tar_images([path])
    return iter([ImageRef(path, FileSource(path))] if is_image(path) and os.path.lexists(path) else [])
