"""Image files: how a folder is listed, and how a file is read. Every source and verb lists folders by this one."""

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
    """Whether the name ends as an image's does, in any case; what is inside is for the decoder to say."""
    return suffix(name) in IMAGE_SUFFIXES


def suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


# What systems leave behind in folders, in any case; so is every name that begins with a dot.
LITTER = frozenset(("$recycle.bin", "@eadir", "__macosx", "__pycache__", "desktop.ini", "lost+found", "thumbs.db"))

Identity = tuple[int, int]  # device and inode: one folder, whatever path leads to it


def is_litter(name: str) -> bool:
    """Whether a file or folder is hidden or left behind by the system."""
    return name.startswith(".") or name.lower() in LITTER


class Folder(NamedTuple):
    """The names in one folder, sorted, apart from litter; and the folders above it, itself included."""

    folders: list[str]
    images: list[str]
    others: list[str]
    broken_links: list[str]
    ancestors: tuple[Identity, ...]


def list_folder(path: str, ancestors: tuple[Identity, ...], key: Callable[[str], Any] | None = None) -> Folder:
    """List one folder. Links are followed; one that leads back to an ancestor is a DataError."""
    here = identity(path)
    if here in ancestors:
        raise DataError("leads back to a folder above it", code="data.link_loop", where=path, hint="remove the link")
    found = Folder([], [], [], [], (*ancestors, here))
    try:
        with os.scandir(path or ".") as entries:
            for entry in entries:  # only links cost a call: the type of the rest comes with the name
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
    except OSError:  # a link in circles, or to where one may not look: whoever enters it learns why
        return folder.broken_links if is_image(entry.name) else folder.folders
    if entry.is_symlink() and not os.path.isfile(entry.path):
        return folder.broken_links
    return folder.images if is_image(entry.name) and entry.is_file() else folder.others


def identity(path: str) -> Identity:
    """What tells whether two paths lead to the same folder."""
    try:
        status = os.stat(path or ".")
    except OSError as error:
        raise unreadable(path, error) from None
    return status.st_dev, status.st_ino


def ancestors_of(path: str | Path) -> tuple[Identity, ...]:
    """The folders above a path, for `list_folder`."""
    return tuple(identity(str(folder)) for folder in Path(path).resolve().parents)


@dataclass(frozen=True)
class FileStore:
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


def parse_json(text: bytes | str, where: str | PurePath, code: str, hint: str) -> Any:
    """The value of a JSON text; text that is not JSON is a DataError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", code=code, where=where, hint=hint) from None


def unreadable(path: str | PurePath, error: OSError) -> DataError:
    """The error for a file or folder that the system does not hand out."""
    remedies = {
        FileNotFoundError: "it was there when the data was listed; put it back, or start again",
        PermissionError: "give yourself the right to read it: chmod -R u+rX",
    }
    hint = next((advice for kind, advice in remedies.items() if isinstance(error, kind)), "")
    return DataError(
        f"cannot be read: {(error.strerror or str(error)).lower()}", code="data.unreadable", where=path, hint=hint
    )
