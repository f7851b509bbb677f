"""References to images that are to be predicted: a file, bytes of a tar shard, an item of a dataset, or an error.

A reference is read when its turn comes. Tar shards, local or remote, are not unpacked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vitral.core.errors import DataError, VitralError
from vitral.data.datasets.files import is_image, unreadable
from vitral.data.datasets.shards import DRAFT, INDEX, list_members, parse_index
from vitral.data.datasets.urls import (
    check_protocol,
    file_sizes,
    is_pattern,
    is_tar,
    join,
    list_tars,
    open_file,
    read_range,
    read_whole,
)
from vitral.data.samples import Store


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
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise DataError("no such file", code="data.not_found", where=self.path, hint="check the path") from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        except ValueError:  # a zero byte, or half a surrogate from JSON
            hint = "write one path a line" if "\0" in self.path else "correct the path"
            raise DataError("no file can have such a name", code="data.bad_path", where=self.path, hint=hint) from None


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes of a local or remote file."""

    path: str
    start: int
    length: int

    def read(self) -> bytes:
        return read_range(self.path, self.start, self.length)


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


@dataclass(frozen=True)
class UnlistedImages:
    """A folder, list or tar that could not be listed to its end; reading it raises the error."""

    error: DataError

    def read(self) -> bytes:
        raise self.error


def tar_images(paths: Iterable[str]) -> Iterator[ImageRef]:
    """The images inside tar files, in their order."""
    for path in paths:
        try:
            with open_file(path) as file:
                empty = True
                for part in list_members(file, path):
                    if is_image(part.name):
                        empty = False
                        yield ImageRef(f"{path}/{part.name}", ByteRange(path, part.start, part.length))
            if empty:
                raise DataError("no images in it", code="data.empty", where=path, hint="remove it or download it again")
        except DataError as error:
            yield ImageRef(error.where or path, UnlistedImages(error))


def pack_images(folder: str) -> Iterator[ImageRef]:
    """The images of a folder that `vitral pack` wrote, by their original names."""
    if INDEX not in file_sizes(folder):
        hint = "run vitral pack again with the same data: it resumes"
        raise DataError("an unfinished pack", code="data.unfinished_pack", where=folder, hint=hint)
    for shard in parse_index(read_whole(join(folder, INDEX)), join(folder, INDEX)).shards:
        tar = join(folder, shard.file)
        for name, start, length in zip(shard.names, shard.starts, shard.lengths, strict=True):
            yield ImageRef(f"{folder.rstrip('/')}/{name}", ByteRange(tar, start, length))


def remote_images(address: str) -> Iterator[ImageRef]:
    """The images of remote tar shards (`s3://bucket/set/*.tar`), or of a remote pack or folder of tars."""
    if address.startswith(("http://", "https://")) and not is_tar(address):
        hint = "download it and give the file; only tar shards (.tar) are read remotely"
        raise DataError(
            "a web address; vitral does not download single images",
            code="data.remote_address",
            where=address,
            hint=hint,
        )
    check_protocol(address)
    if is_tar(address) or is_pattern(address):
        return tar_images(list_tars(address))
    beside = file_sizes(address)
    if INDEX in beside or DRAFT in beside:
        return pack_images(address)
    found = [join(address, name) for name in beside if is_tar(name)]
    if not found:
        hint = "give the folder of the shards, or a pattern of them"
        raise DataError("no tar files in it", code="data.empty", where=address, hint=hint)
    return tar_images(found)
