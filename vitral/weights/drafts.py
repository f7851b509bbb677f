"""Drafts of folders: what a killed process leaves of one is removed by the next that makes the same.

A draft lies in a folder beside its place (`photos-onnx.tmp-9f3c07aa/new`), next to a file whose lock its writer holds:
one that can be locked was left by a process that died.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO

from vitral.errors import ConfigError, VitralError
from vitral.weights.durable import Disk
from vitral.weights.refusal import reason, remedy

if sys.platform != "win32":
    import fcntl

DRAFT, LOCK = "new", "lock"
DISK = Disk()


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end, all of it on the disk; after an error there is nothing."""
    refuse_unspeakable(out)
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
        what, where = f"cannot be written: {reason(error)}", str(error.filename or out)
        advice = f"{remedy(error)}, then try again"
        raise VitralError(what, code="file.write_failed", where=where, remedy=advice) from error


def refuse_unspeakable(out: Path) -> None:
    """Refuse a name that is no text: what is written there could not tell where it is."""
    try:
        str(out.absolute()).encode()
    except UnicodeEncodeError:
        what, remedy = "has bytes in its name that are not UTF-8", "choose another name"
        raise ConfigError(what, code="config.invalid_name", where=ascii(str(out)), remedy=remedy) from None


def _begun(out: Path) -> tuple[Path, BinaryIO]:
    """A new folder, and its lock."""
    while True:
        home = Path(mkdtemp(prefix=_prefix(out), dir=out.parent))
        file = (home / LOCK).open("xb")
        if kept(file, home / LOCK):
            return home, file
        file.close()


def _sweep(out: Path) -> None:
    if sys.platform == "win32":  # which has no such lock: what is still written cannot be told from what was left
        return
    for home in out.parent.iterdir():
        if home.name.startswith(_prefix(out)):
            # There is no lock in a folder of another kind; that of a draft which is still written is not to be had.
            with suppress(OSError), (home / LOCK).open("r+b") as file:
                lock(file.fileno())
                shutil.rmtree(home / DRAFT, ignore_errors=True)  # the lock goes last, for a sweep can be killed too
                shutil.rmtree(home)


def _prefix(out: Path) -> str:
    return f"{out.name}.tmp-"


def kept(file: BinaryIO, draft: Path) -> bool:
    """Whether the new draft is locked, and no other process took it for a leftover before it was."""
    try:
        lock(file.fileno())
    except BlockingIOError:
        return False
    except OSError:
        return True  # a disk without locks, where nothing can be swept either
    return draft.exists()


def lock(handle: int) -> None:
    """Have a file alone, or raise BlockingIOError: the lock of a process is gone the moment the process is."""
    if sys.platform != "win32":  # where an open file cannot be removed anyway
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
