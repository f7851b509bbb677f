"""Names packed into one array: workers that read a million small strings would each end with a copy of them all."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Names:
    """Strings, by place."""

    letters: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """The names in the order given."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> str:
        return os.fsdecode(self.encoded(place))

    def encoded(self, place: int) -> bytes:
        """The name as its file system has it."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        start = self.ends[place - 1] if place else 0
        return self.letters[start : self.ends[place]].tobytes()
