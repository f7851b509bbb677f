"""One writer a run.

The lock is the kernel's: it is gone the moment the process that holds it is, however that ended. Where there is no
`flock` (Windows), nothing is held and two writers are not told of each other.
"""

import os
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from vitral.errors import ConfigError, VitralError

FILE = ".lock"

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
            handle = os.open(self.folder / FILE, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._take(handle)
            except BaseException:
                os.close(handle)
                raise
        except OSError as error:
            what = f"cannot be locked for writing: {(error.strerror or str(error)).lower()}"
            remedy = "mend that, or write to another folder or disk"
            raise VitralError(what, code="file.lock_failed", where=str(self.folder), remedy=remedy) from error
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
        remedy = "wait until that ends or stop it, or write to another folder"
        what = f"{who} is writing this run"
        return ConfigError(what, code="config.run_locked", where=str(self.folder), remedy=remedy)
