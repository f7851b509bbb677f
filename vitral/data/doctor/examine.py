"""Examine files: read the header, decode the image, and make a small thumbnail to compare it with others.

Worker processes examine files in parallel; results come in the order of the items.
"""

import hashlib
import logging
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitral.core.config import Size
from vitral.core.errors import DataError, VitralError
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.header import Decoding, Header
from vitral.data.decoding.isolation import Isolation
from vitral.data.decoding.memory import MemoryBudget, renew_budget, set_budget, share_budget
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.shared_memory import DEFAULT_CONTEXT, SharedArray, create_shared
from vitral.data.samples import Item, Samples, Store
from vitral.data.thumbnails import native_decoding

THUMBNAIL_SIDE = 16  # rows and columns
# A JPEG is decoded at four times this size; if smaller, a copy saved as PNG would have a different thumbnail.
MIN_SIZE = Size(4 * THUMBNAIL_SIDE, 4 * THUMBNAIL_SIDE)
DEFAULT = Decoding()


class ImageInfo(NamedTuple):
    """A file that decodes."""

    header: Header
    digest: bytes  # of the whole file
    contrast: int  # brightest minus darkest value, in the channel with the largest difference
    thumbnail: bytes  # 16 x 16 x 3
    damage: str = ""  # of a file that is used nevertheless


class Unreadable(NamedTuple):
    """A file that cannot be decoded, with the text of the error."""

    code: str
    message: str
    hint: str


ExamResult = ImageInfo | Unreadable


class ExaminedItem(NamedTuple):
    """An item and its result."""

    item: Item
    result: ExamResult


def examine(store: Store, item: Item, decoding: Decoding = DEFAULT, decode: ImageDecoder = decode_image) -> ExamResult:
    """Examine one image; a file that cannot be read or decoded gives `Unreadable`."""
    try:
        return _decode(store.read(item.name), item.name, decoding, decode)
    except DataError as error:
        return Unreadable(error.code, error.message, error.hint)


def _decode(data: bytes, name: str, decoding: Decoding, decode: ImageDecoder) -> ImageInfo:
    damages: list[str] = []
    native = native_decoding(data, name, decoding).model_copy(update={"jpeg_scale": "smallest"})
    decoded = decode(data, name, native, lambda _: MIN_SIZE, lambda _, damage: damages.append(damage))
    header, pixels = decoded
    if pixels.shape[2] not in {1, 3}:
        pixels = pixels.mean(axis=2, keepdims=True).astype(np.uint8)
    contrast = measure_contrast(pixels)
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])
    del decoded, pixels  # of a large image, before the next copy
    thumbnail = picture.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BILINEAR).convert("RGB")
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return ImageInfo(header, digest, contrast, thumbnail.tobytes(), "; ".join(damages))


def measure_contrast(pixels: Pixels) -> int:
    """The brightest minus the darkest value, in the channel with the largest difference."""
    rows = pixels.reshape(len(pixels), -1)  # (H, W C): much faster over rows than over pixels
    high, low = (each.reshape(pixels.shape[1:]) for each in (rows.max(axis=0), rows.min(axis=0)))  # each (W, C)
    return int((high.max(axis=0).astype(np.int16) - low.min(axis=0)).max())


CHUNK = 64  # items that a worker examines at a time
log = logging.getLogger("vitral")

Chunk = Sequence[Item]


class Worker(NamedTuple):
    """A worker process, the pipe for its results, and the index of its current item in the chunk."""

    process: BaseProcess
    answers: Connection
    at: SharedArray  # (1,)

    def answer(self, store: Store, chunk: Chunk) -> list[ExamResult]:
        """The results of the next chunk."""
        try:
            return self.answers.recv()
        except EOFError:
            self.process.join()
            item = chunk[int(self.at.array[0])]
            message = f"a worker process died with exit code {self.process.exitcode} while it read this image"
            hint = "if it happens again with this image, remove it; if memory ran out, use --workers 1"
            where = store.address(item.name)
            raise VitralError(message, code="run.lost_process", where=where, hint=hint) from None


def examine_isolated(
    samples: Samples, isolation: Isolation, decoding: Decoding = DEFAULT
) -> Generator[ExaminedItem, None, None]:
    """Examine every item, in order, and decode in child processes: a file that ends one is unreadable."""
    threads = ThreadPoolExecutor(isolation.processes)
    waiting: deque[tuple[Item, Future[ExamResult]]] = deque()
    with isolation.build() as decode:
        try:
            for item in samples.items:
                waiting.append((item, threads.submit(examine, samples.store, item, decoding, decode)))
                if len(waiting) == CHUNK:
                    first, result = waiting.popleft()
                    yield ExaminedItem(first, result.result())
            for item, result in waiting:
                yield ExaminedItem(item, result.result())
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            decode.close()  # else the threads would wait for the files at hand
            threads.shutdown()


def examine_all(samples: Samples, workers: int, decoding: Decoding = DEFAULT) -> Generator[ExaminedItem, None, None]:
    """Examine every item, in order; in this process if there are no workers or only a few items."""
    if workers < 1 or len(samples.items) <= CHUNK:
        for item in samples.items:
            yield ExaminedItem(item, examine(samples.store, item, decoding))
        return
    chunks = [samples.items[start : start + CHUNK] for start in range(0, len(samples.items), CHUNK)]
    pool: list[Worker] = []
    try:
        for number in range(workers):
            pool.append(_start_worker(samples.store, chunks[number::workers], decoding))
        for number, chunk in enumerate(chunks):
            yield from map(ExaminedItem, chunk, pool[number % workers].answer(samples.store, chunk))
    finally:
        for worker in pool:
            worker.process.kill()
        for worker in pool:
            worker.process.join()
            worker.answers.close()
        renew_budget()


def with_progress(results: Generator[ExaminedItem, None, None], total: int) -> Iterator[ExaminedItem]:
    """The same results, with a progress bar on stderr if it is a terminal and --quiet is not set."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    silent = not (console.is_terminal and log.isEnabledFor(logging.INFO))
    try:
        begun = list(
            islice(results, 1)
        )  # start the workers before the progress bar starts a thread, which must not be forked
        yield from track(chain(begun, results), "examining", total, console=console, transient=True, disable=silent)
    finally:
        results.close()


def _start_worker(store: Store, chunks: Sequence[Chunk], decoding: Decoding) -> Worker:
    answers, end = DEFAULT_CONTEXT.Pipe(duplex=False)
    at, memory = create_shared((1,), "int64", DEFAULT_CONTEXT), share_budget(DEFAULT_CONTEXT)
    process = DEFAULT_CONTEXT.Process(target=_run_worker, args=(store, chunks, end, at, decoding, memory), daemon=True)
    process.start()
    end.close()  # so that the pipe closes if the worker dies
    return Worker(process, answers, at)


def _run_worker(
    store: Store,
    chunks: Sequence[Chunk],
    answers: Connection,
    at: SharedArray,
    decoding: Decoding,
    memory: MemoryBudget,
) -> None:
    """The loop of a worker. It ignores interrupts, because the parent handles them and stops the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_budget(memory)
    for chunk in chunks:
        results = []
        for index, item in enumerate(chunk):
            at.array[0] = index
            results.append(examine(store, item, decoding))
        try:
            answers.send(results)
        except BrokenPipeError:  # the parent is gone
            return
