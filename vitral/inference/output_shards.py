"""Parts of a large output: each is there whole or not at all, whatever ends its process.

A part is written as a hidden draft beside it (`.1.jsonl.tmp-9f3c07aa`), brought to the disk and renamed. The writer
holds the kernel's lock on its draft, so a draft that can be locked was left by a process that died, and is removed.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from vitral.core.errors import ConfigError, VitralError
from vitral.core.storage import Storage, write_hint, lock_draft, lock_file, os_error_message

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DISK = Storage()
SHARD = re.compile("([0-9]{1,9})/([0-9]{1,9})")


class Shard(NamedTuple):
    """One of so many shares of the images, counted from 1.

    The name of an image decides its share: whatever is added to a folder or taken from it, no other image moves.
    """

    number: int
    of: int

    def holds(self, name: str) -> bool:
        """Whether the image of that name is in this share; it is in exactly one."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) % self.of == self.number - 1


WHOLE = Shard(1, 1)


def parse_shard(text: str) -> Shard:
    """The share that `2/8` stands for."""
    match = SHARD.fullmatch(text.strip())
    if match and 1 <= int(match[1]) <= int(match[2]):
        return Shard(int(match[1]), int(match[2]))
    hint = "write the number of the share, from 1 on, and how many there are"
    raise ConfigError(
        f"expected one of 1/N to N/N such as 2/8, got {text!r}", code="config.bad_shard", where="--shard", hint=hint
    )


def output_exists(path: Path, option: str) -> bool:
    """Whether a part was made before; what cannot be one is refused in the name of the option."""
    if os.path.lexists(path) and not path.is_file():
        found = "a folder" if path.is_dir() else "something else"
        raise ConfigError(
            f"expected a file to write, found {found} at {path}",
            code="config.path_exists",
            where=option,
            hint="name a new file",
        )
    return path.is_file()


@contextmanager
def open_output(path: Path, option: str) -> Iterator[BinaryIO]:
    """A file to write a part into, which gets its name at the end; after an error there is nothing.

    What the disk refuses is told in the name of the part; whatever else goes wrong meanwhile goes through as it is.
    """
    draft, file = _create_draft(path, option)
    try:
        with file:
            yield file
            with report_write_errors(path):
                file.flush()
                os.fsync(file.fileno())
                if sys.platform == "win32":  # where an open file keeps its name
                    file.close()
                draft.replace(path)
        with report_write_errors(path):
            DISK.flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def report_write_errors(part: Path) -> Iterator[None]:
    """What the system refuses to write meanwhile is an error that names the part."""
    try:
        yield
    except OSError as error:
        message = f"cannot be written: {os_error_message(error)}"
        raise VitralError(
            message, code="file.write_failed", where=str(part), hint=f"{write_hint(error)}, then run it again"
        ) from error


class _Draft(FileIO):
    """A new file below the buffer that all who write a part share, so that none of them has to know the part."""

    def __init__(self, path: Path, part: Path) -> None:
        super().__init__(path, "xb")
        self.part = part

    def write(self, data: "ReadableBuffer", /) -> int:
        with report_write_errors(self.part):
            return super().write(data)


def _create_draft(path: Path, option: str) -> tuple[Path, BinaryIO]:
    """A new draft, locked, after those that dead processes left were removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_drafts(path)
        while True:
            draft = path.with_name(f"{_prefix(path)}{token_hex(4)}")
            file = BufferedWriter(_Draft(draft, path))
            if lock_draft(file, draft):
                return draft, file
            file.close()
    except OSError as error:
        message = f"expected a file that can be written, and {path} cannot: {os_error_message(error)}"
        raise ConfigError(
            message, code="config.not_writable", where=option, hint=f"{write_hint(error)}, or name another file"
        ) from error


def _remove_stale_drafts(path: Path) -> None:
    for draft in path.parent.iterdir():
        if draft.name.startswith(_prefix(path)):
            with suppress(OSError), draft.open("r+b") as file:  # one that has just got its name, or is still written
                lock_file(file.fileno())
                draft.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}.tmp-"
