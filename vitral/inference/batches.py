"""From files to batches of pixels, read ahead of whoever answers them.  B images, H x W pixels, C channels.

Threads read and decode, which both happen outside Python's lock; how much lies ready is bounded, so memory stays flat.
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
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import PixelBatch
from vitral.inference.image_refs import ImageRef

THREADS = 4
PREFETCH_BATCHES = 2  # batches that may lie ready or be on their way
TORCH_AFTER = 500  # images, after which more are to be expected
MAX_FAILED = 4  # times the size of a batch: then it is handed on, however few of it are good
NICENESS = 10  # how far the threads stand back for the engine, in the system's measure of niceness


class Batch(NamedTuple):
    """Images in the order given: the pixels of those that could be read, and why the others could not."""

    names: tuple[str, ...]
    failed: dict[int, VitralError]  # by the place among the names
    pixels: PixelBatch  # (B, H, W, C), of the others

    @property
    def good(self) -> list[str]:
        """The names of those that could be read."""
        return [name for place, name in enumerate(self.names) if place not in self.failed]


def read_batches(images: Iterable[ImageRef], needs: Preprocessing, size: int) -> Iterator[Batch]:
    """The images as the model sees them, so many at a time."""
    pool = ThreadPoolExecutor(THREADS, "reading", _lower_priority)
    waiting: deque[tuple[str, Future[Pixels | VitralError]]] = deque()
    found = _BatchBuilder(needs, size)
    try:
        for number, image in enumerate(images, start=1):
            waiting.append((image.name, pool.submit(_decode, image, needs)))
            if number == TORCH_AFTER:
                pool.submit(import_module, "torch")  # which resizes quicker, and is worth it now
            if len(waiting) >= PREFETCH_BATCHES * size:
                yield from found.added(*waiting.popleft())
        while waiting:
            yield from found.added(*waiting.popleft())
        yield from found.rest()
    finally:
        pool.shutdown(cancel_futures=True)


class _BatchBuilder:
    """The batch at hand."""

    def __init__(self, needs: Preprocessing, size: int) -> None:
        self.shape, self.size = (size, *needs.image_size, needs.decoding.channels), size
        self._begin()

    def added(self, name: str, future: Future[Pixels | VitralError]) -> Iterator[Batch]:
        """Add an image once it is decoded; the batch, if that filled it."""
        found = future.result()
        if isinstance(found, VitralError):
            self.failed[len(self.names)] = found
        else:
            self.pixels[len(self.names) - len(self.failed)] = found
        self.names.append(name)
        good = len(self.names) - len(self.failed)
        if good == self.size or len(self.failed) == MAX_FAILED * self.size:
            yield from self.rest()

    def rest(self) -> Iterator[Batch]:
        if self.names:
            good = len(self.names) - len(self.failed)
            yield Batch(tuple(self.names), self.failed, self.pixels[:good])
        self._begin()

    def _begin(self) -> None:
        self.names: list[str] = []
        self.failed: dict[int, VitralError] = {}
        self.pixels = np.empty(self.shape, dtype=np.uint8)  # (B, H, W, C), new: the last one may still be in use


def _decode(image: ImageRef, needs: Preprocessing) -> Pixels | VitralError:
    """The pixels (H, W, C), or what is wrong with the file."""
    try:
        return needs.pixels(image.place.read(), image.name)
    except VitralError as error:
        return error
    except Exception as error:  # a fault of ours, which must still name the image
        message = f"{type(error).__name__}: {error}"
        raise VitralError(
            message, code="internal.unexpected", where=image.name, hint="report it: vitral is at fault"
        ) from error


def _lower_priority() -> None:
    """Let the engine go first where both want a processor; Linux counts threads as it counts processes."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(PermissionError):  # a sandbox may forbid even this, and the images are read all the same
            present = os.getpriority(os.PRIO_PROCESS, thread)  # which `nice` may have set, and is not to be undone
            os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, present))
