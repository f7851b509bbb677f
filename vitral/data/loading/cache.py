"""Cache of decoded images in memory, shared by all worker processes and by all loaders of a process.

An image is cached at the scale at which it was decoded, so a cached image has the pixels that the file would give.
H rows, W columns, C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Lock
from weakref import WeakValueDictionary

from vitral.core.config import Size
from vitral.data.decoding.decode import EncodedImage, jpeg_scale
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.shared_memory import Context, SharedArray, create_shared

SCALES = (1, 2, 4, 8)
HEIGHT, WIDTH, REDUCIBLE, STARTS = 0, 1, 2, 3  # columns of the table; a start for each scale
CACHE_BYTES = 2**30


@dataclass(frozen=True)
class CacheMemory:
    """Bytes for the pixels of several caches. Memory is only used once it is written to."""

    pixels: SharedArray  # (bytes,)
    used: SharedArray  # (1,) bytes handed out
    lock: Lock  # of `used` and of the tables


_memories: WeakValueDictionary[tuple[int, Context], CacheMemory] = WeakValueDictionary()


def process_memory(cache_bytes: int, context: Context) -> CacheMemory:
    """The memory that all loaders of this process share; it is freed with the last of them."""
    memory = _memories.get((cache_bytes, context))
    if memory is None:
        pixels, used = create_shared((cache_bytes,), "uint8", context), create_shared((1,), "int64", context)
        memory = _memories[cache_bytes, context] = CacheMemory(pixels, used, context.Lock())
    return memory


def discard_memory(cache_bytes: int, context: Context) -> None:
    """Let loaders start with new memory: a worker was killed, perhaps while it held the lock."""
    _memories.pop((cache_bytes, context), None)


@dataclass(frozen=True)
class DecodedCache:
    """The cached images of a dataset."""

    memory: CacheMemory
    table: SharedArray  # (images, 7): full size, whether a JPEG, and for each scale 1 + the start of the pixels
    channels: int


def create_cache(images: int, channels: int, memory: CacheMemory, context: Context) -> DecodedCache:
    """An empty cache for a dataset of so many images."""
    return DecodedCache(memory, create_shared((images, STARTS + len(SCALES)), "int64", context), channels)


class CachedImage:
    """An image of a dataset. Its file is read and decoded only if the cache does not have it."""

    def __init__(self, cache: DecodedCache, index: int, read: Callable[[], EncodedImage]) -> None:
        self.cache, self.index, self.read = cache, index, read
        with cache.memory.lock:
            height, width, reducible = (int(cell) for cell in cache.table.array[index, :STARTS])
        self.encoded = None if height else read()
        if self.encoded is not None:
            height, width = self.encoded.size
            reducible = self.encoded.header.format == "JPEG"
            with cache.memory.lock:
                cache.table.array[index, :STARTS] = height, width, reducible
        self.size, self.reducible = Size(height, width), bool(reducible)

    def pixels(self, need: Size) -> Pixels:
        """The image, (H, W, C): see `Encoded.pixels`. The array must not be written to."""
        scale = jpeg_scale(self.size, need) if self.reducible else 1
        column = STARTS + SCALES.index(scale)
        with self.cache.memory.lock:
            start = int(self.cache.table.array[self.index, column]) - 1
        if start >= 0:
            rows, columns = -(-self.size.height // scale), -(-self.size.width // scale)
            flat = self.cache.memory.pixels.array[start : start + rows * columns * self.cache.channels]
            return flat.reshape(rows, columns, self.cache.channels)
        pixels = (self.encoded or self.read()).pixels(need)
        self._store(pixels, column)
        return pixels

    def _store(self, pixels: Pixels, column: int) -> None:
        memory = self.cache.memory
        with memory.lock:
            start = int(memory.used.array[0])
            if start + pixels.size > len(memory.pixels.array):
                return
            memory.used.array[0] = start + pixels.size
        memory.pixels.array[start : start + pixels.size] = pixels.reshape(-1)
        with memory.lock:
            self.cache.table.array[self.index, column] = start + 1
