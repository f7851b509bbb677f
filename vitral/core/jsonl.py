"""Append-only logs of JSON lines. Readers see each line at once; a killed process loses none."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitral.core.errors import VitralError
from vitral.core.files import GIB, read_file
from vitral.core.storage import STORAGE, Storage, os_error_message, write_error

Record = dict[str, Any]
LOG_BYTES = GIB


class JsonlLog:
    """Appends lines to a file. A partial last line, left by a killed process, is dropped on opening.

    A log has one writer: the process that holds the lock of the run.
    """

    def __init__(self, path: Path, storage: Storage = STORAGE) -> None:
        self.path, self.storage = path, storage
        with self._write_errors():
            self._handle = self._open()
            os.ftruncate(self._handle, len(_complete_lines(path.read_bytes())))

    def append(self, record: Record) -> None:
        """Write a line. It outlives the process once this returns; see `flush` for power cuts."""
        rest = memoryview(_line(record))
        with self._write_errors():
            while rest:
                rest = rest[os.write(self._handle, rest) :]

    def filter(self, keep: Callable[[Record], bool]) -> None:
        """Remove the lines that `keep` rejects, atomically; the others stay byte for byte."""
        text = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line, record in zip(text, read_jsonl(self.path), strict=True) if keep(record)]
        if len(kept) == len(text):
            return
        with self._write_errors():
            self.storage.replace_file(self.path, b"".join(kept))
            os.close(self._handle)
            self._handle = self._open()

    def flush(self) -> None:
        """Fsync all lines, so that they survive a power cut."""
        with self._write_errors():
            os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(error, self.path, "its earlier lines are intact") from error


def read_jsonl(path: Path) -> list[Record]:
    """The complete lines of a log, which may be growing; none if there is no file."""
    try:
        text = read_file(path, LOG_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"cannot be read: {os_error_message(error)}"
        raise VitralError(message, code="file.read_failed", where=path) from error
    lines = enumerate(_complete_lines(text).splitlines(), start=1)
    return [_record(line, f"{path}:{number}") for number, line in lines]


def _complete_lines(text: bytes) -> bytes:
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
