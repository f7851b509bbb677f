"""Memory that worker processes share with the one that started them.

Not torch's shared tensors: those live in /dev/shm, which containers keep so small that loaders die there of a bus
error.
"""

import mmap
import multiprocessing
import sys
from dataclasses import dataclass
from multiprocessing.context import ForkContext, SpawnContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

Context = ForkContext | SpawnContext
FORK: Context = multiprocessing.get_context("fork")
SPAWN: Context = multiprocessing.get_context("spawn")
# A forked worker starts at once and shares all that was loaded; elsewhere system libraries do not survive a fork.
USUAL = FORK if sys.platform == "linux" else SPAWN


@dataclass(frozen=True)
class Shared:
    """An array of zeros that processes started later write to together; memory is taken as it is touched."""

    memory: Any  # an anonymous map that a fork inherits, or a RawArray that travels to a spawned process
    shape: tuple[int, ...]
    dtype: str

    @property
    def array(self) -> NDArray[Any]:
        """The array, as this process sees it."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return np.frombuffer(self.memory, dtype=self.dtype, count=count).reshape(self.shape)


def share(shape: tuple[int, ...], dtype: str, context: Context) -> Shared:
    """Shared memory for processes that this context starts."""
    size = max(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize, 1)
    memory = mmap.mmap(-1, size) if isinstance(context, ForkContext) else context.RawArray("B", size)
    return Shared(memory, shape, dtype)
