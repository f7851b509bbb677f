"""Damage to files: single bits flipped at many places, each of which must be noticed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def flips(size: int, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Places to flip in a file, as byte and bit: its first and last bytes, and others between them."""
    rng = np.random.default_rng(seed)
    ends = {0, min(8, size - 1), size - 1}
    places = sorted(ends | set(rng.integers(0, size, max(0, count - len(ends))).tolist()))
    return [(place, int(rng.integers(8))) for place in places]


@contextmanager
def flipped(path: Path, place: int, bit: int) -> Iterator[None]:
    """Inside this context, a bit of a file is flipped."""
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(content)


def files_of(folder: Path) -> Iterator[Path]:
    """All files of an artefact but README.md, which may be edited."""
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "README.md")
