"""A file of JSON lines that grows as a run goes on: who follows it sees each line at once, and a kill loses none."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitral.core.errors import VitralError
from vitral.core.storage import Storage, write_error, os_error_message

DISK = Storage()

Record = dict[str, Any]


class JsonlLog:
    """Appends lines to a file; half a line at its end, which a kill has left, is dropped when it is opened.

    One process writes a journal: the one that holds the lock of the run.
    """

    def __init__(self, path: Path, disk: Storage = DISK) -> None:
        self.path, self.disk = path, disk
        with self.writing():
            self._handle = self._open()
            os.ftruncate(self._handle, len(_whole(path.read_bytes())))

    def add(self, record: Record) -> None:
        """Write a line. It is the system's when this returns, and outlives the process; see `flush` for power cuts."""
        rest = memoryview(_line(record))
        with self.writing():
            while rest:
                rest = rest[os.write(self._handle, rest) :]

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        """Remove the lines that are not wanted, all at once; the others keep every byte."""
        text = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line, record in zip(text, read_jsonl(self.path), strict=True) if wanted(record)]
        if len(kept) == len(text):
            return
        with self.writing():
            self.disk.replace(self.path, b"".join(kept))
            os.close(self._handle)
            self._handle = self._open()

    def flush(self) -> None:
        """Bring all lines to the disk, where a power cut cannot undo them."""
        with self.writing():
            os.fsync(self._handle)

    def close(self) -> None:
        """Write no more."""
        os.close(self._handle)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(error, self.path, "its earlier lines are whole") from error


def read_jsonl(path: Path) -> list[Record]:
    """The whole lines of a journal, which may be growing; none where there is no file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"cannot be read: {os_error_message(error)}"
        raise VitralError(message, code="file.read_failed", where=str(path)) from error
    return [_record(line, f"{path}:{number}") for number, line in enumerate(_whole(text).splitlines(), start=1)]


def _whole(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _record(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        message = f"expected a JSON object, got {line[:40].decode(errors='replace')!r}"
        raise VitralError(message, code="run.bad_log", where=where, hint="remove that line")
    return record
