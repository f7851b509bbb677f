"""Durable files: atomic writes, fsync, locks, and errors of the operating system as VitralError.

Only this module (and `core/jsonl.py`, which appends) renames files and calls fsync; a test holds that rule.

    write_file_atomically   a file with this content: readers see the old one or the new one, never a part
    open_atomically         the same as a stream
    new_file, new_folder    named once complete; what a killed process leaves is removed by the next one
    Storage                 the single steps, each durable on return, reported to a callback
    Lock                    one writer per folder
"""

import errno
import hashlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedWriter, FileIO
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from vitral.core.errors import ConfigError, VitralError, WeightsError
from vitral.core.files import FileTooLarge, NotRegularFile

if sys.platform != "win32":
    import fcntl
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WRITE_HINTS = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space within your quota",
    errno.EFBIG: "raise the file size limit: ulimit -f",
    errno.EACCES: "make it writable: chmod u+rwX",
    errno.EPERM: "make it writable: chmod u+rwX",
    errno.EROFS: "mount that disk writable",
    errno.ENOENT: "restore the folder",
    errno.ENOTDIR: "restore the folder",
    errno.ELOOP: "remove that link, through which nothing is written",
}
READ_HINTS = {
    errno.ENOENT: "check the path, or copy the folder again",
    errno.EACCES: "make it readable: chmod u+rX",
    errno.EPERM: "make it readable: chmod u+rX",
    errno.EINVAL: "copy its content into a file, or remove it",
}


def os_error_message(error: OSError) -> str:
    """The message of the operating system, in lower case."""
    return (error.strerror or str(error)).lower()


def write_hint(error: OSError) -> str:
    """What to do so that writing succeeds."""
    return WRITE_HINTS.get(error.errno or 0, "fix that")


def write_error(error: OSError, path: Path, kept: str = "", then: str = "resume the run") -> VitralError:
    """The error for a failed write: the file, the reason, what is still intact, and what to do next."""
    message = f"cannot be written: {os_error_message(error)}{f'; {kept}' if kept else ''}"
    hint = f"{write_hint(error)}, then {then}"
    return VitralError(message, code="file.write_failed", where=str(error.filename or path), hint=hint)


@contextmanager
def wrap_write_errors(path: Path, then: str = "try again") -> Iterator[None]:
    """Turn an OSError into a VitralError that names the file and what to do next."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)  # not the temporary file
        raise write_error(error, path, then=then) from error


@contextmanager
def wrap_read_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a WeightsError that names the file."""
    try:
        yield
    except OSError as error:
        raise weights_read_error(error, path) from None


READ_CODES = {
    FileNotFoundError: "weights.not_found",
    NotRegularFile: "weights.not_a_file",
    FileTooLarge: "weights.file_too_large",
}


def weights_read_error(error: OSError, path: Path) -> WeightsError:
    """The error for a file of a model that cannot be read."""
    code, hint = READ_CODES.get(type(error), "weights.unreadable"), READ_HINTS.get(error.errno or 0, "")
    return WeightsError(f"cannot be read: {os_error_message(error)}", code=code, where=path, hint=hint)


def open_no_follow(path: Path, flags: int) -> int:
    """Open a file for writing, but neither what a link points to nor a pipe: a folder may be a stranger's."""
    safe = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    return os.open(path, flags | safe, 0o666)


def refuse_link(folder: Path) -> None:
    """Reject a folder that is a link: what is written or removed there would be elsewhere."""
    if folder.is_symlink():
        message, hint = "is a link, through which nothing is written", "remove the link, or move the folder here"
        raise VitralError(message, code="file.is_link", where=folder, hint=hint)


def make_folders(folder: Path, exist_ok: bool = True) -> None:
    """Create a folder and its missing parents, each listed on the disk."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=exist_ok)
    for each in reversed(missing):
        STORAGE.fsync(each.parent)


class FileDigest(NamedTuple):
    """Size and hash of a file, to verify it later."""

    size: int
    sha256: str


def file_digest(content: bytes) -> FileDigest:
    """The size and hash of a file with this content."""
    return FileDigest(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Storage:
    """Durable operations. `on_event` is called after each one, and after each chunk of a file."""

    on_event: Callable[[str], None] = lambda event: None

    def make_folder(self, folder: Path) -> None:
        """Create a folder in an existing one."""
        folder.mkdir()
        self.on_event(f"made {folder.name}")
        self.fsync(folder.parent)

    def write_file(self, path: Path, chunks: Iterable[memoryview], mode: int = 0o666) -> FileDigest:
        """Write a new file and fsync it. The caller fsyncs the folder, once for all its files."""
        size, digest = 0, hashlib.sha256()
        with _name_file(path), open(path, "xb", opener=partial(os.open, mode=mode)) as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                size += chunk.nbytes
                self.on_event(f"wrote {size} bytes of {path.name}")
            file.flush()
            os.fsync(file.fileno())
        self.on_event(f"flushed {path.name}")
        return FileDigest(size, digest.hexdigest())

    def fsync(self, path: Path) -> None:
        """Fsync a file, or the entries of a folder; Windows does the latter by itself."""
        if sys.platform == "win32" and path.is_dir():
            return
        with _name_file(path):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self.on_event(f"flushed {path.name}")

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder within its folder, to a free name."""
        old.rename(new)
        self.on_event(f"renamed {old.name} to {new.name}")
        self.fsync(new.parent)

    def replace_folder(self, draft: Path, final: Path, backup: Path) -> None:
        """Give the draft its final name. The folder that had it becomes the backup, restored if that fails."""
        try:
            if final.exists():
                self.remove(backup)
                self.rename(final, backup)
            self.rename(draft, final)
        except OSError:
            if backup.exists() and not final.exists():
                self.rename(backup, final)
            raise
        self.remove(backup)

    def replace_file(self, path: Path, content: bytes | Iterable[memoryview], unique: bool = False) -> None:
        """Write a file, or replace it atomically. Several processes may do so at once if the draft is `unique`."""
        draft, chunks = _draft_of(path, unique), [memoryview(content)] if isinstance(content, bytes) else content
        try:
            self.remove(draft)
            self.write_file(draft, chunks)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        self.on_event(f"replaced {path.name}")
        self.fsync(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its contents, if it exists."""
        if not os.path.lexists(path):
            return
        if path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                self.remove(inner)
            path.rmdir()
        else:
            path.unlink()
        self.on_event(f"removed {path.name}")


STORAGE = Storage()


def write_file_atomically(path: Path, content: bytes | str) -> None:
    """Write a file, or replace it: readers see the old content or the new, also after a kill or a power cut."""
    with wrap_write_errors(path):
        STORAGE.replace_file(path, content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """A stream to write a file that is replaced when the block ends, and left as it was after an error."""
    draft = _draft_of(path)
    try:
        STORAGE.remove(draft)
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    STORAGE.fsync(path.parent)


def _draft_of(path: Path, unique: bool = False) -> Path:
    """The temporary name; where it is not unique, the next write reuses what a killed process left."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}-{token_hex(4)}" if unique else f"{path.name}.tmp")


@contextmanager
def _name_file(path: Path) -> Iterator[None]:
    """Add the file name to an OSError; the system leaves it out when writing to an open file fails."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


DRAFT, DRAFT_LOCK = "new", "lock"


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end, all of it on the disk; after an error there is nothing."""
    check_utf8_name(out)
    try:
        make_folders(out.parent)
        _remove_stale_folders(out)
        home, file = _create_locked_folder(out)
        try:
            with file:
                STORAGE.make_folder(home / DRAFT)
                yield home / DRAFT
                STORAGE.fsync(home / DRAFT)
                STORAGE.rename(home / DRAFT, out)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    except OSError as error:
        raise write_error(error, out, then="try again") from error


def check_utf8_name(out: Path) -> None:
    """Reject a path that is not valid UTF-8: it could not be written into JSON or a report."""
    try:
        str(out.absolute()).encode()
    except UnicodeEncodeError:
        message, hint = "has bytes in its name that are not UTF-8", "choose another name"
        raise ConfigError(message, code="config.invalid_name", where=ascii(str(out)), hint=hint) from None


def _create_locked_folder(out: Path) -> tuple[Path, BinaryIO]:
    while True:
        home = Path(mkdtemp(prefix=f"{out.name}.tmp-", dir=out.parent))
        file = (home / DRAFT_LOCK).open("xb")
        if _lock_draft(file, home / DRAFT_LOCK):
            return home, file
        file.close()


def _remove_stale_folders(out: Path) -> None:
    if sys.platform == "win32":  # without locks a draft in use cannot be distinguished from a stale one
        return
    for home in out.parent.iterdir():
        if home.name.startswith(f"{out.name}.tmp-"):
            # Other folders have no lock file; the lock of a draft in use cannot be taken.
            with suppress(OSError), open(open_no_follow(home / DRAFT_LOCK, os.O_RDWR), "r+b") as file:
                lock_file(file.fileno())
                shutil.rmtree(home / DRAFT, ignore_errors=True)  # the lock goes last: this can be killed too
                shutil.rmtree(home)


@contextmanager
def new_file(path: Path, then: str = "try again") -> Iterator[BinaryIO]:
    """A file to fill, which gets its name at the end; after an error there is nothing.

    The draft is hidden, and locked while its writer lives. An OSError before the block means that no file can be
    created; a failed write inside it is a VitralError that names the file. Other errors pass unchanged.
    """
    make_folders(path.parent)
    prefix = f".{path.name}.tmp-"
    for stale in [each for each in path.parent.iterdir() if each.name.startswith(prefix)]:
        with (
            suppress(OSError),
            open(open_no_follow(stale, os.O_RDWR), "r+b") as file,
        ):  # renamed just now, or still locked
            lock_file(file.fileno())
            stale.unlink()
    while True:
        draft = path.with_name(f"{prefix}{token_hex(4)}")
        output = BufferedWriter(_DraftFile(draft, path, then))
        if _lock_draft(output, draft):
            break
        output.close()
    try:
        with output:
            yield output
            with wrap_write_errors(path, then):
                output.flush()
                os.fsync(output.fileno())
                if sys.platform == "win32":  # where an open file cannot be renamed
                    output.close()
                draft.replace(path)
        with wrap_write_errors(path, then):
            STORAGE.fsync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


class _DraftFile(FileIO):
    """The draft of a new file; its write errors name the file."""

    def __init__(self, draft: Path, path: Path, then: str) -> None:
        super().__init__(draft, "xb")
        self.path, self.then = path, then

    def write(self, data: "ReadableBuffer", /) -> int:
        with wrap_write_errors(self.path, self.then):
            return super().write(data)


def _lock_draft(file: BinaryIO, draft: Path) -> bool:
    """Whether the new draft is locked, and no other process removed it as stale before it was."""
    try:
        lock_file(file.fileno())
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks, where nothing is removed either
    return draft.exists()


def lock_file(handle: int) -> None:
    """Lock an open file, or raise BlockingIOError. The kernel frees the lock when the process ends, however it does."""
    if sys.platform != "win32":  # where an open file cannot be removed anyway
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


LOCK_FILE = ".lock"

_held: set[int] = set()


def _close_inherited_locks() -> None:
    """A forked process shares its parent's locks and would hold them after the parent died; so it drops them."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_inherited_locks)


class Lock:
    """One writer per folder: while this context lasts, another process that enters it gets a ConfigError.

    The kernel frees the lock when the process ends. On Windows, which has no `flock`, nothing is locked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = -1

    def __enter__(self) -> Self:
        handle = -1
        try:
            handle = open_no_follow(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
            lock_file(handle)
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:
            holder = os.pread(handle, 1000, 0).decode(errors="replace") if isinstance(error, BlockingIOError) else ""
            if handle >= 0:
                os.close(handle)
            if isinstance(error, BlockingIOError):
                message = f"{holder or 'another process'} is writing this run"
                hint = "wait until it ends or stop it, or write to another folder"
                raise ConfigError(message, code="config.run_locked", where=self.folder, hint=hint) from None
            message = f"cannot be locked for writing: {os_error_message(error)}"
            hint = "fix that, or write to another folder or disk"
            raise VitralError(message, code="file.lock_failed", where=self.folder, hint=hint) from error
        self._handle = handle
        _held.add(handle)
        return self

    def __exit__(self, *error: object) -> None:
        # The file stays: if it were removed, a third process could lock a new one beside the one waited for.
        if self._handle in _held:  # not so in a forked process
            _held.remove(self._handle)
            os.close(self._handle)
