"""Reading and decoding images ahead of the engine.  B images, H x W pixels, C channels.

Threads read and decode, both of which release the GIL. The number of batches in flight is bounded, and memory with it.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

import numpy as np

from vitral.core.errors import VitralError
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.isolation import IsolatedDecoder
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import PixelBatch
from vitral.inference.inputs import ImageRef

THREADS = 4
PREFETCH_BATCHES = 2  # batches that are decoded ahead
TORCH_AFTER = 500  # images; from then on importing torch, which resizes faster, pays off
MAX_FAILED = 4  # unreadable images, in batch sizes, after which a batch is handed on as it is
NICENESS = 10  # of the decoding threads: the engine goes first


class Batch(NamedTuple):
    """Images in the order given: the pixels of those that could be read, and the errors of the others."""

    names: tuple[str, ...]
    failed: dict[int, VitralError]  # by index into names
    pixels: PixelBatch  # (B, H, W, C), of the others

    @property
    def readable(self) -> list[str]:
        """The names of the images that could be read."""
        return [name for index, name in enumerate(self.names) if index not in self.failed]


def read_batches(
    images: Iterable[ImageRef], needs: Preprocessing, size: int, decode: ImageDecoder = decode_image
) -> Iterator[Batch]:
    """The images as the model's preprocessing makes them, in batches of this size."""
    pool = ThreadPoolExecutor(THREADS, "reading", lower_priority)
    waiting: deque[tuple[str, Future[Pixels | VitralError]]] = deque()
    builder = _BatchBuilder(needs, size)
    try:
        for number, image in enumerate(images, start=1):
            waiting.append((image.name, pool.submit(_decode, image, needs, decode)))
            if number == TORCH_AFTER:
                pool.submit(import_module, "torch")
            if len(waiting) >= PREFETCH_BATCHES * size:
                yield from builder.add(*waiting.popleft())
        while waiting:
            yield from builder.add(*waiting.popleft())
        yield from builder.flush()
    except (KeyboardInterrupt, GeneratorExit):
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(decode, IsolatedDecoder):
            decode.close()  # else the threads would wait for the files at hand
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _BatchBuilder:
    """Collects decoded images into a batch."""

    def __init__(self, needs: Preprocessing, size: int) -> None:
        self.shape, self.size = (size, *needs.image_size, needs.decoding.channels), size
        self._start()

    def add(self, name: str, future: Future[Pixels | VitralError]) -> Iterator[Batch]:
        """Add an image once it is decoded; yields the batch if that completes it."""
        result = future.result()
        if isinstance(result, VitralError):
            self.failed[len(self.names)] = result
        else:
            self.pixels[len(self.names) - len(self.failed)] = result
        self.names.append(name)
        good = len(self.names) - len(self.failed)
        if good == self.size or len(self.failed) == MAX_FAILED * self.size:
            yield from self.flush()

    def flush(self) -> Iterator[Batch]:
        if self.names:
            good = len(self.names) - len(self.failed)
            yield Batch(tuple(self.names), self.failed, self.pixels[:good])
        self._start()

    def _start(self) -> None:
        self.names: list[str] = []
        self.failed: dict[int, VitralError] = {}
        self.pixels = np.empty(self.shape, dtype=np.uint8)  # (B, H, W, C); the last one may still be in use


def _decode(image: ImageRef, needs: Preprocessing, decode: ImageDecoder) -> Pixels | VitralError:
    """The pixels (H, W, C), or the error of an unreadable file."""
    try:
        return needs.pixels(image.source.read(), image.name, decode)
    except VitralError as error:
        return error
    except Exception as error:  # a bug, which must still name the image
        message = f"{type(error).__name__}: {error}"
        raise VitralError(
            message, code="internal.unexpected", where=image.name, hint="this is a bug in vitral: please report it"
        ) from error


def lower_priority() -> None:
    """Give the engine precedence over this thread; on Linux niceness is per thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(PermissionError):  # a sandbox may forbid it
            present = os.getpriority(os.PRIO_PROCESS, thread)  # as set by `nice`
            os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, present))
