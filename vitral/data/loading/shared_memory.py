"""Memory shared with worker processes: arrays, and the cache of decoded images.  H rows, W columns, C channels.

Torch's shared tensors live in /dev/shm, which containers keep so small that loaders die of a bus error; these are
anonymous maps.
"""

import mmap
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.synchronize import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Size
from vitral.data.decoding.decode import EncodedImage, jpeg_scale
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels

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


CACHE_BYTES = 2**30
SCALES = (1, 2, 4, 8)
STARTS = 3  # columns of the table before those of the scales


class CacheMemory:
    """Memory for the pixels of several caches. Pages are allocated when written."""

    def __init__(self, cache_bytes: int, context: Context) -> None:
        self.pixels = create_shared((cache_bytes,), "uint8", context)
        self.used = create_shared((1,), "int64", context)  # number of bytes in use
        self.lock: Lock = context.Lock()  # protects `used` and the tables


_memories: WeakValueDictionary[tuple[int, Context], CacheMemory] = WeakValueDictionary()


def process_memory(cache_bytes: int, context: Context) -> CacheMemory:
    """The memory that all loaders of this process share; it is freed with the last of them."""
    memory = _memories.get((cache_bytes, context)) or CacheMemory(cache_bytes, context)
    return _memories.setdefault((cache_bytes, context), memory)


def discard_memory(cache_bytes: int, context: Context) -> None:
    """Let loaders start with new memory: a worker was killed, perhaps while it held the lock."""
    _memories.pop((cache_bytes, context), None)


class DecodedCache:
    """The cached images of one dataset.

    An image is cached at the scale at which it was decoded, so a cached image has the pixels that the file would give.
    """

    def __init__(self, images: int, decoding: Decoding, memory: CacheMemory, context: Context) -> None:
        self.memory, self.decoding = memory, decoding
        # (images, 7): height, width, whether it is a JPEG, and for each scale 1 + the start of the pixels
        self.table = create_shared((images, STARTS + len(SCALES)), "int64", context)


class CachedImage:
    """An image of a dataset. Its file is read and decoded only if the cache does not have it."""

    def __init__(self, cache: DecodedCache, index: int, read: Callable[[], EncodedImage]) -> None:
        self.cache, self.row, self.read = cache, cache.table.array[index], read
        with cache.memory.lock:
            height, width, is_jpeg = self.row[:STARTS].tolist()
        self.encoded = None if height else read()
        if self.encoded is not None:
            (height, width), is_jpeg = self.encoded.size, self.encoded.header.format == "JPEG"
            with cache.memory.lock:
                self.row[:STARTS] = height, width, is_jpeg
        self.size, self.is_jpeg = Size(height, width), is_jpeg

    def pixels(self, min_size: Size) -> Pixels:
        """The image, (H, W, C): see `EncodedImage.pixels`. The array must not be written to."""
        scale = jpeg_scale(self.size, min_size, self.cache.decoding.jpeg_scale) if self.is_jpeg else 1
        column, memory = STARTS + SCALES.index(scale), self.cache.memory
        with memory.lock:
            start = int(self.row[column]) - 1
        if start >= 0:
            shape = (-(-self.size.height // scale), -(-self.size.width // scale), self.cache.decoding.channels)
            return memory.pixels.array[start : start + prod(shape)].reshape(shape)
        pixels = (self.encoded or self.read()).pixels(min_size)
        with memory.lock:
            start = int(memory.used.array[0])
            end = start + pixels.size
            if end > len(memory.pixels.array):
                return pixels
            memory.used.array[0] = end
        memory.pixels.array[start:end] = pixels.reshape(-1)
        with memory.lock:
            self.row[column] = start + 1
        return pixels
