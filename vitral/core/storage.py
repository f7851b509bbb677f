"""One writer a run.

The lock is the kernel's: it is gone the moment the process that holds it is, however that ended. Where there is no
`flock` (Windows), nothing is held and two writers are not told of each other.

What the system refuses to do with a file, told so that a person can mend it.
Writing that a power cut cannot undo: what an operation here has done is on the disk when it returns.
Drafts of folders: what a killed process leaves of one is removed by the next that makes the same.
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
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from vitral.core.errors import ConfigError, VitralError, WeightsError

WRITE_HINTS = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room within your quota",
    errno.EFBIG: "raise the limit on the size of files: ulimit -f",
    errno.EACCES: "give yourself the right to write there: chmod u+rwX",
    errno.EPERM: "give yourself the right to write there: chmod u+rwX",
    errno.EROFS: "make that disk writable",
    errno.ENOENT: "put the folder back",
    errno.ENOTDIR: "put the folder back",
}

READ_HINTS = {
    errno.ENOENT: "check the path, or copy the folder again",
    errno.EACCES: "give yourself the right to read it: chmod u+rX",
    errno.EPERM: "give yourself the right to read it: chmod u+rX",
}


def os_error_message(error: OSError) -> str:
    """What the system says, as a part of a sentence."""
    return (error.strerror or str(error)).lower()


def write_hint(error: OSError) -> str:
    """What to do so that writing succeeds."""
    return WRITE_HINTS.get(error.errno or 0, "mend that")


def write_error(error: OSError, path: Path, kept: str) -> VitralError:
    """What to tell of a write that failed: the file or `path`, the reason, what is kept all the same, the remedy."""
    message = f"cannot be written: {os_error_message(error)}; {kept}"
    where, advice = str(error.filename or path), f"{write_hint(error)}, then resume the run"
    return VitralError(message, code="file.write_failed", where=where, hint=advice)


@contextmanager
def wrap_read_errors(path: Path) -> Iterator[None]:
    """What the system does not hand out is a WeightsError that names the file."""
    try:
        yield
    except OSError as error:
        advice = READ_HINTS.get(error.errno or 0, "")
        code = "weights.not_found" if isinstance(error, FileNotFoundError) else "weights.unreadable"
        raise WeightsError(
            f"cannot be read: {os_error_message(error)}", code=code, where=str(path), hint=advice
        ) from None


class FileDigest(NamedTuple):
    """What tells whether a file is still as it was written."""

    size: int
    sha256: str


def ignore_event(done: str) -> None:
    """For those who do not listen."""


@dataclass(frozen=True)
class Storage:
    """Durable operations; `tell` hears of each as soon as it is done, and of each piece of a file."""

    tell: Callable[[str], None] = ignore_event

    def make(self, folder: Path) -> None:
        """Make a folder in one that exists."""
        folder.mkdir()
        self.tell(f"made {folder.name}")
        self.flush(folder.parent)

    def write(self, path: Path, pieces: Iterable[memoryview]) -> FileDigest:
        """Write a new file. The folder that lists it is for the caller to flush, once for all its files."""
        size, digest = 0, hashlib.sha256()
        with _naming(path), path.open("xb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += piece.nbytes
                self.tell(f"wrote {size} bytes of {path.name}")
            file.flush()
            os.fsync(file.fileno())
        self.tell(f"flushed {path.name}")
        return FileDigest(size, digest.hexdigest())

    def flush(self, path: Path) -> None:
        """Bring a file, or a folder's list of names, to the disk; Windows does that to folders by itself."""
        if sys.platform == "win32" and path.is_dir():
            return
        with _naming(path):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self.tell(f"flushed {path.name}")

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name in the same folder, one that is free."""
        old.rename(new)
        self.tell(f"renamed {old.name} to {new.name}")
        self.flush(new.parent)

    def exchange(self, draft: Path, final: Path, aside: Path) -> None:
        """Give the draft its final name. What has it already stands aside, and comes back if that fails."""
        try:
            if final.exists():
                self.remove(aside)
                self.rename(final, aside)
            self.rename(draft, final)
        except OSError:
            if aside.exists() and not final.exists():
                self.rename(aside, final)
            raise
        self.remove(aside)

    def replace(self, path: Path, content: bytes) -> None:
        """Have a file with this content, whether there was one before or not; at no instant is there half of one."""
        draft = path.with_name(f"{path.name}.tmp")  # always the same, so that what a kill leaves is used up next time
        try:
            self.remove(draft)
            self.write(draft, [memoryview(content)])
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        self.tell(f"replaced {path.name}")
        self.flush(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it, where there is one."""
        if not os.path.lexists(path):
            return
        if path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                self.remove(inner)
            path.rmdir()
        else:
            path.unlink()
        self.tell(f"removed {path.name}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """The system does not say which file it is when writing to an open one fails; this does."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


if sys.platform != "win32":
    import fcntl

DRAFT, LOCK = "new", "lock"
DISK = Storage()


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end, all of it on the disk; after an error there is nothing."""
    check_utf8_name(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        home, file = _begun(out)
        try:
            with file:
                DISK.make(home / DRAFT)
                yield home / DRAFT
                DISK.flush(home / DRAFT)
                DISK.rename(home / DRAFT, out)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    except OSError as error:
        message, where = f"cannot be written: {os_error_message(error)}", str(error.filename or out)
        advice = f"{write_hint(error)}, then try again"
        raise VitralError(message, code="file.write_failed", where=where, hint=advice) from error


def check_utf8_name(out: Path) -> None:
    """Refuse a name that is no text: what is written there could not tell where it is."""
    try:
        str(out.absolute()).encode()
    except UnicodeEncodeError:
        message, hint = "has bytes in its name that are not UTF-8", "choose another name"
        raise ConfigError(message, code="config.invalid_name", where=ascii(str(out)), hint=hint) from None


def _begun(out: Path) -> tuple[Path, BinaryIO]:
    """A new folder, and its lock."""
    while True:
        home = Path(mkdtemp(prefix=_prefix(out), dir=out.parent))
        file = (home / LOCK).open("xb")
        if lock_draft(file, home / LOCK):
            return home, file
        file.close()


def _sweep(out: Path) -> None:
    if sys.platform == "win32":  # which has no such lock: what is still written cannot be told from what was left
        return
    for home in out.parent.iterdir():
        if home.name.startswith(_prefix(out)):
            # There is no lock in a folder of another kind; that of a draft which is still written is not to be had.
            with suppress(OSError), (home / LOCK).open("r+b") as file:
                lock_file(file.fileno())
                shutil.rmtree(home / DRAFT, ignore_errors=True)  # the lock goes last, for a sweep can be killed too
                shutil.rmtree(home)


def _prefix(out: Path) -> str:
    return f"{out.name}.tmp-"


def lock_draft(file: BinaryIO, draft: Path) -> bool:
    """Whether the new draft is locked, and no other process took it for a leftover before it was."""
    try:
        lock_file(file.fileno())
    except BlockingIOError:
        return False
    except OSError:
        return True  # a disk without locks, where nothing can be swept either
    return draft.exists()


def lock_file(handle: int) -> None:
    """Have a file alone, or raise BlockingIOError: the lock of a process is gone the moment the process is."""
    if sys.platform != "win32":  # where an open file cannot be removed anyway
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


LOCK_FILE = ".lock"

_held: set[int] = set()


def _let_go() -> None:
    """A forked process shares its parent's locks, and would hold them after the parent died; so it drops them."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform != "win32":
    import fcntl

    os.register_at_fork(after_in_child=_let_go)


class Lock:
    """While this context lasts, no other process may enter it for the same folder: it gets a ConfigError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = -1

    def __enter__(self) -> Self:
        try:
            handle = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._take(handle)
            except BaseException:
                os.close(handle)
                raise
        except OSError as error:
            message = f"cannot be locked for writing: {(error.strerror or str(error)).lower()}"
            hint = "mend that, or write to another folder or disk"
            raise VitralError(message, code="file.lock_failed", where=str(self.folder), hint=hint) from error
        self._handle = handle
        _held.add(handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The file stays: were it removed, a third process could lock a new one beside the one that is waited for.
        if self._handle in _held:  # not so in a forked process
            _held.remove(self._handle)
            os.close(self._handle)

    def _take(self, handle: int) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._refusal(os.pread(handle, 1000, 0)) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def _refusal(self, holder: bytes) -> ConfigError:
        who = holder.decode(errors="replace") or "another process"
        hint = "wait until that ends or stop it, or write to another folder"
        message = f"{who} is writing this run"
        return ConfigError(message, code="config.run_locked", where=str(self.folder), hint=hint)
