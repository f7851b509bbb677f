"""Image files: list folders and read files. All sources and commands use these functions."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from vitral.core import documents
from vitral.core.errors import DataError
from vitral.core.files import (
    DOCUMENT_BYTES,
    IMAGE_BYTES,
    FileTooLarge,
    NotRegularFile,
    open_file,
    outside_error,
    read_file,
)
from vitral.core.storage import os_error_message

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

MANIFEST_BYTES = 16 * DOCUMENT_BYTES  # read line by line

Identity = tuple[int, int]  # device and inode: the same for all paths to a folder


def is_litter(name: str) -> bool:
    """Whether a file or folder is hidden or was created by the operating system."""
    return name.startswith(".") or name.lower() in LITTER


MAX_DEPTH = 256  # folders inside each other: each is a call inside a call


class Folder(NamedTuple):
    """The sorted names in a folder, without litter, and the identities of the folder and of those above it.

    Among the broken links are pipes, devices and sockets with the name of an image: reading them raises the reason.
    """

    folders: list[str]
    images: list[str]
    others: list[str]
    broken_links: list[str]
    ancestors: tuple[Identity, ...]


def list_folder(path: str, ancestors: tuple[Identity, ...], key: Callable[[str], Any] | None = None) -> Folder:
    """List one folder. Links are followed; one that leads back to an ancestor is a DataError."""
    if len(ancestors) > MAX_DEPTH:
        message = f"more than {MAX_DEPTH} folders deep"
        raise DataError(message, code="data.too_deep", where=path, hint="move it up, or remove it")
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
    if entry.is_file():  # also what a link leads to
        return folder.images if is_image(entry.name) else folder.others
    return folder.broken_links if entry.is_symlink() or is_image(entry.name) else folder.others


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


def read_bytes(path: str | PurePath, max_bytes: int = IMAGE_BYTES) -> bytes:
    """The content of a regular file within its budget."""
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        raise unreadable(path, error) from None


def read_beside(folder: str, path: str, where: str, outside: bool) -> bytes:
    """The content of an image that a table in a folder names; it may be outside of the folder only if allowed."""
    if not outside and (error := outside_error(path, folder, where)):
        raise error
    whole = os.path.join(folder, path)
    if not os.path.isfile(whole):
        message, hint = f"no such file: {path}", f"put it into {folder}, or save the images in the table"
        raise DataError(message, code="data.missing_file", where=where, hint=hint)
    return read_bytes(whole)


MAX_LINE = 2**20  # characters


def read_lines(path: str | PurePath) -> Iterator[str]:
    """The lines of a UTF-8 text with their ends, which may be of any system; a line too long is a DataError."""
    number = 0
    try:
        with open_file(path, MANIFEST_BYTES) as file, TextIOWrapper(file, "utf-8-sig", newline="") as text:
            while line := text.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    message, hint = f"a line of more than {MAX_LINE:,} characters", "write one image per line"
                    raise DataError(message, code="data.bad_manifest", where=f"{path}:{number}", hint=hint)
                yield line
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:  # it is decoded in pieces, and the place is within one
        byte = error.object[error.start]
        message, hint = f"not UTF-8: a byte {byte:#04x} after line {number}", "save it as UTF-8"
        raise DataError(message, code="data.bad_manifest", where=path, hint=hint) from None


def parse_json(text: bytes | str, where: str | PurePath, code: str, hint: str) -> Any:
    """The value of a JSON text; DataError if it is not JSON."""
    try:
        return documents.parse_json(text)
    except ValueError as error:
        raise DataError(f"not JSON: {error}", code=code, where=where, hint=hint) from None


def unreadable(path: str | PurePath, error: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    if isinstance(error, NotRegularFile):
        hint = "copy its content into a file, or remove it"
        return DataError(os_error_message(error), code="data.not_a_file", where=path, hint=hint)
    if isinstance(error, FileTooLarge):
        hint = "split it, or remove it"
        return DataError(os_error_message(error), code="data.file_too_large", where=path, hint=hint)
    hints = {
        FileNotFoundError: "it existed when the data was listed: restore it, or start again",
        PermissionError: "give yourself permission to read it: chmod -R u+rX",
    }
    hint = next((hint for kind, hint in hints.items() if isinstance(error, kind)), "")
    return DataError(f"cannot be read: {os_error_message(error)}", code="data.unreadable", where=path, hint=hint)
