"""Arrays in memory that worker processes share with their parent.

Torch's shared tensors live in /dev/shm, which containers keep so small that loaders die of a bus error; these are
anonymous maps.
"""

import mmap
import multiprocessing
import sys
from dataclasses import dataclass
from functools import cached_property
from math import prod
from multiprocessing.context import ForkContext, SpawnContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

Context = ForkContext | SpawnContext
FORK: Context = multiprocessing.get_context("fork")
SPAWN: Context = multiprocessing.get_context("spawn")
# A forked worker starts at once and shares all loaded modules; elsewhere system libraries do not survive a fork.
DEFAULT_CONTEXT = FORK if sys.platform == "linux" else SPAWN


@dataclass(frozen=True)
class SharedArray:
    """A zeroed array that processes started later can write to; pages are allocated when written."""

    memory: Any  # an anonymous map, inherited by a fork; or a RawArray, sent to a spawned process
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def array(self) -> NDArray[Any]:
        """The array, as this process sees it."""
        return np.frombuffer(self.memory, dtype=self.dtype, count=prod(self.shape)).reshape(self.shape)

    def __reduce__(self) -> tuple[type["SharedArray"], tuple[Any, tuple[int, ...], str]]:
        return SharedArray, (self.memory, self.shape, self.dtype)  # without the array, which would be copied


def create_shared(shape: tuple[int, ...], dtype: str, context: Context) -> SharedArray:
    """An array shared with the processes that this context starts."""
    size = max(prod(shape) * np.dtype(dtype).itemsize, 1)
    memory = mmap.mmap(-1, size) if isinstance(context, ForkContext) else context.RawArray("B", size)
    return SharedArray(memory, shape, dtype)
