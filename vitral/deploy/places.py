"""Where the bytes of an image are that is to be predicted: in a file, within a tar, in a data set, or nowhere."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vitral.data.samples import Store
from vitral.data.sources.files import unreadable
from vitral.data.sources.shards.places import read_range
from vitral.errors import DataError, VitralError


class Place(Protocol):
    """Where the bytes of an image are."""

    def read(self) -> bytes:
        """The encoded image; DataError where there is none."""
        ...


class Image(NamedTuple):
    """An image by the name that the output has for it, and where its bytes are."""

    name: str
    place: Place


@dataclass(frozen=True)
class File:
    """A file on this machine."""

    path: str

    def read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise DataError("no such file", code="data.not_found", where=self.path, remedy="check the path") from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        except ValueError:  # a zero byte, or half a surrogate from JSON
            remedy = "write one path a line" if "\0" in self.path else "mend the path"
            raise DataError(
                "no file can have such a name", code="data.bad_path", where=self.path, remedy=remedy
            ) from None


@dataclass(frozen=True)
class Stretch:
    """Some bytes of a file, here or afar."""

    path: str
    start: int
    length: int

    def read(self) -> bytes:
        return read_range(self.path, self.start, self.length)


@dataclass(frozen=True)
class Stored:
    """An image of a data set."""

    store: Store
    key: str

    def read(self) -> bytes:
        return self.store.read(self.key)


@dataclass(frozen=True)
class Refused:
    """One image that was named and is not there: whoever reads it learns why."""

    error: VitralError

    def read(self) -> bytes:
        raise self.error


@dataclass(frozen=True)
class Unlisted:
    """A folder, a list or a tar whose images are not known, all of them or the rest: whoever reads it learns why."""

    error: DataError

    def read(self) -> bytes:
        raise self.error
