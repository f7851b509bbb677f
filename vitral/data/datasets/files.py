"""Images that are files below a folder."""

import os
from dataclasses import dataclass
from pathlib import PurePath

from vitral.core.errors import DataError

IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".npy", ".png", ".tif", ".tiff", ".webp")
)


def is_image(name: str) -> bool:
    """Whether the name ends as an image's does, in any case; what is inside is for the decoder to say."""
    return suffix(name) in IMAGE_SUFFIXES


def suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


@dataclass(frozen=True)
class Files:
    """A store of files, named by their path from the root with `/` between the parts."""

    root: str

    def read(self, name: str) -> bytes:
        return read_bytes(self.address(name))

    def size(self, name: str) -> int:
        path = self.address(name)
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise unreadable(path, error) from None

    def address(self, name: str) -> str:
        return os.path.join(self.root, name)


def read_bytes(path: str | PurePath) -> bytes:
    """All of a file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: str | PurePath, error: OSError) -> DataError:
    """The error for a file or folder that the system does not hand out."""
    remedies = {
        FileNotFoundError: "it was there when the data was listed; put it back, or start again",
        PermissionError: "give yourself the right to read it: chmod -R u+rX",
    }
    hint = next((advice for kind, advice in remedies.items() if isinstance(error, kind)), "")
    return DataError(
        f"cannot be read: {(error.strerror or str(error)).lower()}",
        code="data.unreadable",
        where=str(path),
        hint=hint,
    )
