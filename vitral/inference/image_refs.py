"""Images inside tar shards, here or afar, with labels or without. Nothing is unpacked, and no list of them is kept.

Where the bytes of an image are that is to be predicted: in a file, within a tar, in a data set, or nowhere.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vitral.core.errors import DataError, VitralError
from vitral.data.datasets.files import is_image, unreadable
from vitral.data.datasets.shards.index import DRAFT, INDEX, parse_index
from vitral.data.datasets.shards.tar import parts
from vitral.data.datasets.shards.urls import (
    check_protocol,
    is_pattern,
    is_tar,
    join,
    opened,
    read_range,
    read_whole,
    sizes,
    tars,
)
from vitral.data.samples import Store


class ImageSource(Protocol):
    """Where the bytes of an image are."""

    def read(self) -> bytes:
        """The encoded image; DataError where there is none."""
        ...


class ImageRef(NamedTuple):
    """An image by the name that the output has for it, and where its bytes are."""

    name: str
    place: ImageSource


@dataclass(frozen=True)
class FileSource:
    """A file on this machine."""

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
            hint = "write one path a line" if "\0" in self.path else "mend the path"
            raise DataError("no file can have such a name", code="data.bad_path", where=self.path, hint=hint) from None


@dataclass(frozen=True)
class ByteRange:
    """Some bytes of a file, here or afar."""

    path: str
    start: int
    length: int

    def read(self) -> bytes:
        return read_range(self.path, self.start, self.length)


@dataclass(frozen=True)
class DatasetImage:
    """An image of a data set."""

    store: Store
    key: str

    def read(self) -> bytes:
        return self.store.read(self.key)


@dataclass(frozen=True)
class MissingImage:
    """One image that was named and is not there: whoever reads it learns why."""

    error: VitralError

    def read(self) -> bytes:
        raise self.error


@dataclass(frozen=True)
class UnlistedImages:
    """A folder, a list or a tar whose images are not known, all of them or the rest: whoever reads it learns why."""

    error: DataError

    def read(self) -> bytes:
        raise self.error


def tar_images(paths: Iterable[str]) -> Iterator[ImageRef]:
    """The images inside tars, labeled or not, in the order that they lie in."""
    for path in paths:
        try:
            with opened(path) as file:
                empty = True
                for part in parts(file, path):
                    if is_image(part.name):
                        empty = False
                        yield ImageRef(f"{path}/{part.name}", ByteRange(path, part.start, part.length))
            if empty:
                raise DataError("no images in it", code="data.empty", where=path, hint="remove it or fetch it again")
        except DataError as error:
            yield ImageRef(error.where or path, UnlistedImages(error))


def pack_images(folder: str) -> Iterator[ImageRef]:
    """The images of a pack by the names that they had before it was packed."""
    if INDEX not in sizes(folder):
        hint = "run vitral pack again with the same data: it goes on where it stopped"
        raise DataError("a pack that was not finished", code="data.unfinished_pack", where=folder, hint=hint)
    for shard in parse_index(read_whole(join(folder, INDEX)), join(folder, INDEX)).shards:
        tar = join(folder, shard.file)
        for name, start, length in zip(shard.names, shard.starts, shard.lengths, strict=True):
            yield ImageRef(f"{folder.rstrip('/')}/{name}", ByteRange(tar, start, length))


def remote_images(address: str) -> Iterator[ImageRef]:
    """The images of tar shards at an address such as `s3://bucket/set/*.tar`, or of a pack or folder of tars there."""
    if address.startswith(("http://", "https://")) and not is_tar(address):
        hint = "fetch it and give the file; only tar shards (.tar) are read from afar"
        raise DataError(
            "an address, and vitral downloads nothing", code="data.remote_address", where=address, hint=hint
        )
    check_protocol(address)
    if is_tar(address) or is_pattern(address):
        return tar_images(tars(address))
    beside = sizes(address)
    if INDEX in beside or DRAFT in beside:
        return pack_images(address)
    found = [join(address, name) for name in beside if is_tar(name)]
    if not found:
        hint = "give the folder of the shards, or a pattern of them"
        raise DataError("no tar files in it", code="data.empty", where=address, hint=hint)
    return tar_images(found)
