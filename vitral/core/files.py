"""Files that are read: regular ones only, within a budget of bytes.

A path from a stranger may be a link to `/dev/zero`, a pipe that nobody writes to, or an entry of `/proc`. Each of these
is an OSError at once: `NotRegularFile`. A file above its budget is a `FileTooLarge` before a byte of it is read.

    open_file    a stream of a file
    read_file    its content
    check_file   for libraries that open files themselves
    leaves_folder  whether a path that a list names is outside of the folder of the list
"""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import PurePath

from vitral.core.errors import DataError

KIB, MIB, GIB = 2**10, 2**20, 2**30
CONFIG_BYTES = 8 * MIB  # of a config or another document: parsed, each byte of it may take 20
DOCUMENT_BYTES = 64 * MIB  # of the index of a dataset, which may list millions of images
IMAGE_BYTES = 256 * MIB  # of an encoded image: 50 million pixels of 3 x 8 bits take 143 MiB uncompressed
UNLIMITED = sys.maxsize  # for files that are mapped or read in pieces

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
VIRTUAL = ("/proc", "/sys")  # their entries look like regular files, and may be endless or change something
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))

PathLike = str | PurePath


class NotRegularFile(OSError):
    """A path that is no regular file: a pipe, a device, a socket, or an entry of `/proc`."""


class FileTooLarge(OSError):
    """A file of more bytes than its budget."""


def check_file(path: PathLike, max_bytes: int = UNLIMITED) -> int:
    """The size of a regular file within its budget; OSError for any other path."""
    return _check(os.stat(path), path, max_bytes)


def open_file(path: PathLike, max_bytes: int = UNLIMITED) -> BufferedReader:
    """A stream of a regular file within its budget; OSError for any other path, without waiting."""
    check_file(path, max_bytes)  # before opening it, which does something to some devices
    handle = os.open(path, FLAGS)
    try:
        _check(os.fstat(handle), path, max_bytes)  # it may have been replaced
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: PathLike, max_bytes: int = CONFIG_BYTES) -> bytes:
    """The content of a regular file within its budget; what is appended meanwhile is not read."""
    check_file(path, max_bytes)
    handle = os.open(path, FLAGS)
    try:
        left = _check(os.fstat(handle), path, max_bytes)
        content = os.read(handle, left)
        if len(content) < left:  # a system call reads 2 GB at most; the end of a file that was cut is empty
            pieces = [content]
            while pieces[-1] and (left := left - len(pieces[-1])):
                pieces.append(os.read(handle, left))
            content = b"".join(pieces)
        return content
    finally:
        os.close(handle)


def _check(status: os.stat_result, path: PathLike, max_bytes: int) -> int:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise NotRegularFile(errno.EINVAL, f"expected a file, found {KINDS.get(kind, 'something else')}", str(path))
    if status.st_dev in _virtual_devices():
        raise NotRegularFile(errno.EINVAL, "expected a file, found a special file of the kernel", str(path))
    if status.st_size > max_bytes:
        message = f"{status.st_size:,} bytes, the limit is {max_bytes:,}"
        raise FileTooLarge(errno.EFBIG, message, str(path))
    return status.st_size


@cache
def _virtual_devices() -> frozenset[int]:
    """The device numbers of the file systems that the kernel makes up."""
    root = os.stat("/").st_dev if os.path.isdir("/") else -1  # where they are not mounted, they are plain folders
    return frozenset(os.stat(folder).st_dev for folder in VIRTUAL if os.path.isdir(folder)) - {root}


_outside = False  # of the process: threads and workers read files, too


def outside_is_allowed() -> bool:
    """Whether lists may name files outside of their folder."""
    return _outside


def allow_outside_from_now_on(allowed: bool) -> None:
    """Allow it or not for the rest of the process, as the command line does."""
    global _outside  # noqa: PLW0603, one of the process
    _outside = allowed


@contextmanager
def allow_outside(allowed: bool = True) -> Iterator[None]:
    """Inside this context, manifests and tables may name files outside of their folder, in all threads."""
    before = _outside
    allow_outside_from_now_on(allowed or before)
    try:
        yield
    finally:
        allow_outside_from_now_on(before)


def leaves_folder(path: str, folder: str) -> bool:
    """Whether a path, relative to a folder or absolute, is outside of it, as it is written: links are followed."""
    if not os.path.isabs(path) and ".." not in path:
        return False
    whole, root = os.path.abspath(os.path.join(folder, path)), os.path.abspath(folder)
    return not f"{whole}{os.sep}".startswith(root.rstrip(os.sep) + os.sep)


def outside_error(path: str, folder: str, where: str) -> DataError | None:
    """The error for a path that is outside of the folder of the list that names it."""
    if not leaves_folder(path, folder):
        return None
    message = f"{path} is outside of {folder or '.'}, the folder of the list that names it"
    hint = "if you trust the list: --allow-outside, or vitral.allow_outside() in Python"
    return DataError(message, code="data.outside", where=where, hint=hint)
