"""Writing that a power cut cannot undo: what an operation here has done is on the disk when it returns."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Digest(NamedTuple):
    """What tells whether a file is still as it was written."""

    size: int
    sha256: str


def unheard(done: str) -> None:
    """For those who do not listen."""


@dataclass(frozen=True)
class Disk:
    """Durable operations; `tell` hears of each as soon as it is done, and of each piece of a file."""

    tell: Callable[[str], None] = unheard

    def make(self, folder: Path) -> None:
        """Make a folder in one that exists."""
        folder.mkdir()
        self.tell(f"made {folder.name}")
        self.flush(folder.parent)

    def write(self, path: Path, pieces: Iterable[memoryview]) -> Digest:
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
        return Digest(size, digest.hexdigest())

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
