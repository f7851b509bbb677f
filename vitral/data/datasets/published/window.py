"""A part of a file as a file of its own: a tar inside a tar is read in place."""

import os
from io import RawIOBase
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Window(RawIOBase):
    """The bytes of a file from `start`, `length` of them. The file must not be read otherwise meanwhile."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        self._file.seek(self._start + self._at)
        found = self._file.read(min(len(view), max(0, self._length - self._at)))
        view[: len(found)] = found
        self._at += len(found)
        return len(found)
