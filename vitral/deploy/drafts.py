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

from vitral.deploy.parts import kept, lock

DRAFT, LOCK = "new", "lock"


@contextmanager
def drafting(out: Path) -> Iterator[Path]:
    """A place for a draft of a folder, to be renamed to it; what is left there at the end is removed."""
    _sweep(out)
    home, file = _begun(out)
    try:
        with file:
            yield home / DRAFT
    finally:
        shutil.rmtree(home, ignore_errors=True)


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
