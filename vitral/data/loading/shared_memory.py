"""Memory that worker processes share with the one that started them.

Not torch's shared tensors: those live in /dev/shm, which containers keep so small that loaders die there of a bus
error.
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
# A forked worker starts at once and shares all that was loaded; elsewhere system libraries do not survive a fork.
USUAL = FORK if sys.platform == "linux" else SPAWN


@dataclass(frozen=True)
class Shared:
    """An array of zeros that processes started later write to together; memory is taken as it is touched."""

    memory: Any  # an anonymous map that a fork inherits, or a RawArray that travels to a spawned process
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def array(self) -> NDArray[Any]:
        """The array, as this process sees it."""
        return np.frombuffer(self.memory, dtype=self.dtype, count=prod(self.shape)).reshape(self.shape)

    def __reduce__(self) -> tuple[type["Shared"], tuple[Any, tuple[int, ...], str]]:
        return Shared, (self.memory, self.shape, self.dtype)  # without the array, which would travel as a copy


def share(shape: tuple[int, ...], dtype: str, context: Context) -> Shared:
    """Shared memory for processes that this context starts."""
    size = max(prod(shape) * np.dtype(dtype).itemsize, 1)
    memory = mmap.mmap(-1, size) if isinstance(context, ForkContext) else context.RawArray("B", size)
    return Shared(memory, shape, dtype)
