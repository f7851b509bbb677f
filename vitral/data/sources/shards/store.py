"""The store of images inside tars: a few arrays, whatever the number of images, and no open file."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.data.names import Names
from vitral.data.sources.shards.places import read_range

Integers = NDArray[np.int64]


class Stretches(NamedTuple):
    """Images by name, and where the bytes of each are: the number of its shard, the first byte, how many."""

    names: Sequence[str]
    shards: Sequence[int]
    starts: Sequence[int]
    lengths: Sequence[int]


@dataclass(frozen=True, eq=False)
class Shards:
    """Reads single images out of tars. Python objects by the million would be copied into every worker's memory."""

    paths: tuple[str, ...]
    names: Names  # sorted by their bytes
    shards: Integers
    starts: Integers
    lengths: Integers

    def read(self, name: str) -> bytes:
        at = self._find(name)
        return read_range(self.paths[self.shards[at]], int(self.starts[at]), int(self.lengths[at]))

    def address(self, name: str) -> str:
        return f"{self.paths[self.shards[self._find(name)]]}: {name}"

    def size(self, name: str) -> int:
        return int(self.lengths[self._find(name)])

    def _find(self, name: str) -> int:
        sought = os.fsencode(name)
        at = bisect_left(range(len(self.names)), sought, key=self.names.encoded)
        assert self.names.encoded(at) == sought, name  # names come from the items
        return at


def store_of(paths: Sequence[str], stretches: Stretches) -> Shards:
    """The store of images in the tars at these paths, which `stretches` numbers from 0."""
    order = sorted(range(len(stretches.names)), key=lambda at: os.fsencode(stretches.names[at]))
    names = Names.of(stretches.names[at] for at in order)
    columns = [np.array(column, dtype=np.int64)[order] for column in stretches[1:]]
    return Shards(tuple(paths), names, *columns)
