"""Append-only logs of JSON lines. Readers see each line at once; a killed process loses none."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitral.core.config import Config
from vitral.core.documents import parse_json
from vitral.core.errors import VitralError
from vitral.core.files import GIB, read_file
from vitral.core.storage import STORAGE, Storage, open_no_follow, os_error_message, write_error

Record = dict[str, Any]
LOG_BYTES = GIB


class LogDigest(Config):
    """The length and hash of a log at some moment; later it only has more lines."""

    bytes: int
    sha256: str


class JsonlLog:
    """Appends lines to a file. A partial last line, left by a killed process, is dropped on opening.

    A log has one writer: the process that holds the lock of the run.
    """

    def __init__(self, path: Path, storage: Storage = STORAGE) -> None:
        self.path, self.storage = path, storage
        with self._write_errors():
            is_new = not path.exists()
            self._handle = self._open()
            content = _complete_lines(path.read_bytes())
            os.ftruncate(self._handle, len(content))
            if is_new:
                self.storage.fsync(path.parent)
        self._size, self._sha256 = len(content), hashlib.sha256(content)

    def append(self, record: Record) -> None:
        """Write a line. It outlives the process once this returns; see `flush` for power cuts."""
        line = _line(record)
        rest = memoryview(line)
        with self._write_errors():
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        self._size += len(line)
        self._sha256.update(line)

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
        self._size, self._sha256 = sum(map(len, kept)), hashlib.sha256(b"".join(kept))

    def flush(self) -> LogDigest:
        """Fsync all lines, so that they survive a power cut, and return their length and hash."""
        with self._write_errors():
            os.fsync(self._handle)
        return LogDigest(bytes=self._size, sha256=self._sha256.hexdigest())

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _open(self) -> int:
        return open_no_follow(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(error, self.path, "its earlier lines are intact") from error


def cut_log(path: Path, saved: LogDigest, hint: str) -> None:
    """Remove the lines that were added after a moment; VitralError if the lines before it are not what they were."""
    content = _read(path)
    kept = content[: saved.bytes]
    if len(kept) != saved.bytes or hashlib.sha256(kept).hexdigest() != saved.sha256:
        message = f"its first {saved.bytes:,} bytes are not those that were recorded with the newest checkpoint"
        raise VitralError(message, code="run.log_changed", where=path, hint=hint)
    if len(content) > len(kept):
        try:
            STORAGE.replace_file(path, kept)
        except OSError as error:
            raise write_error(error, path, "its lines are intact") from error


def read_jsonl(path: Path) -> list[Record]:
    """The complete lines of a log, which may be growing; none if there is no file."""
    return [_record(line, f"{path}:{number}") for number, line in enumerate(read_lines(path), start=1)]


def read_lines(path: Path) -> list[bytes]:
    """The complete lines of a log, whatever they hold."""
    return _complete_lines(_read(path)).splitlines()


def _read(path: Path) -> bytes:
    """The content of a file, empty if there is none."""
    try:
        return read_file(path, LOG_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        message = f"cannot be read: {os_error_message(error)}"
        raise VitralError(message, code="file.read_failed", where=path) from error


def _complete_lines(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _record(line: bytes, where: str) -> Record:
    try:
        record = parse_json(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        message = f"expected a JSON object, got {line[:40].decode(errors='replace')!r}"
        raise VitralError(message, code="run.bad_log", where=where, hint="restore the file from a copy")
    return record
