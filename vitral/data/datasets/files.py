"""Image files: list folders and read files. All sources and commands use these functions."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from vitral.core.errors import DataError

IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".npy", ".png", ".tif", ".tiff", ".webp")
)


def is_image(name: str) -> bool:
    """Whether the name has the suffix of an image, in any case; the content is not read."""
    return suffix(name) in IMAGE_SUFFIXES


def suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


# Files and folders that operating systems create, in any case; names that begin with a dot count too.
LITTER = frozenset(("$recycle.bin", "@eadir", "__macosx", "__pycache__", "desktop.ini", "lost+found", "thumbs.db"))

Identity = tuple[int, int]  # device and inode: the same for all paths to a folder


def is_litter(name: str) -> bool:
    """Whether a file or folder is hidden or was created by the operating system."""
    return name.startswith(".") or name.lower() in LITTER


class Folder(NamedTuple):
    """The sorted names in a folder, without litter, and the identities of the folder and of those above it."""

    folders: list[str]
    images: list[str]
    others: list[str]
    broken_links: list[str]
    ancestors: tuple[Identity, ...]


def list_folder(path: str, ancestors: tuple[Identity, ...], key: Callable[[str], Any] | None = None) -> Folder:
    """List one folder. Links are followed; one that leads back to an ancestor is a DataError."""
    here = identity(path)
    if here in ancestors:
        raise DataError("a link to a folder above it", code="data.link_loop", where=path, hint="remove the link")
    found = Folder([], [], [], [], (*ancestors, here))
    try:
        with os.scandir(path or ".") as entries:
            for entry in entries:  # fast: only links need a system call for their type
                if not is_litter(entry.name):
                    _names_like(entry, found).append(entry.name)
    except OSError as error:
        raise unreadable(error.filename or path, error) from None
    for names in found[:4]:
        names.sort(key=key)
    return found


def _names_like(entry: "os.DirEntry[str]", folder: Folder) -> list[str]:
    """The list that an entry belongs to."""
    try:
        if entry.is_dir():
            return folder.folders
    except OSError:  # a circular or forbidden link: reading it raises the reason
        return folder.broken_links if is_image(entry.name) else folder.folders
    if entry.is_symlink() and not os.path.isfile(entry.path):
        return folder.broken_links
    return folder.images if is_image(entry.name) and entry.is_file() else folder.others


def identity(path: str) -> Identity:
    """A value that is equal for two paths to the same folder."""
    try:
        status = os.stat(path or ".")
    except OSError as error:
        raise unreadable(path, error) from None
    return status.st_dev, status.st_ino


def ancestors_of(path: str | Path) -> tuple[Identity, ...]:
    """The identities of the folders above a path, for `list_folder`."""
    return tuple(identity(str(folder)) for folder in Path(path).resolve().parents)


@dataclass(frozen=True)
class FileStore:
    """A store of files. A name is the path from the root, with `/` between folders."""

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
    """The content of a file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from None


def parse_json(text: bytes | str, where: str | PurePath, code: str, hint: str) -> Any:
    """The value of a JSON text; DataError if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", code=code, where=where, hint=hint) from None


def unreadable(path: str | PurePath, error: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    hints = {
        FileNotFoundError: "it existed when the data was listed: restore it, or start again",
        PermissionError: "give yourself permission to read it: chmod -R u+rX",
    }
    hint = next((hint for kind, hint in hints.items() if isinstance(error, kind)), "")
    return DataError(
        f"cannot be read: {(error.strerror or str(error)).lower()}", code="data.unreadable", where=path, hint=hint
    )
