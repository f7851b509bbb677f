"""One file examined: what it declares, whether it decodes, and a sketch of it to compare with others.

Every file examined, by several processes at once, with the results in order.
"""

import hashlib
import logging
import signal
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitral.core.config import Size
from vitral.core.errors import DataError, VitralError
from vitral.data.decoding.decode import opened
from vitral.data.decoding.header import Header
from vitral.data.loading.shared_memory import USUAL, Shared, share
from vitral.data.samples import Item, Samples, Store
from vitral.data.thumbnails import decoding_of, viewable

SKETCH = 16  # rows and columns of a sketch
# A JPEG is decoded four times as fine as its sketch: any coarser, and a copy saved as PNG gives another sketch.
NEED = Size(4 * SKETCH, 4 * SKETCH)


class Sound(NamedTuple):
    """A file that decodes."""

    header: Header
    digest: bytes  # of the whole file
    spread: int  # from the darkest to the brightest pixel, in the channel where that is most
    sketch: bytes  # the picture as 16 x 16 x 3


class Broken(NamedTuple):
    """A file that does not, in the words of the error."""

    code: str
    message: str
    hint: str


Exam = Sound | Broken


class Examined(NamedTuple):
    """An item and what was found."""

    item: Item
    exam: Exam


def examine(store: Store, item: Item) -> Exam:
    """What there is to know of one image; a file that cannot be read or decoded is an answer too."""
    try:
        return _sound(store.read(item.name), item.name)
    except DataError as error:
        return Broken(error.code, error.message, error.hint)


def _sound(data: bytes, name: str) -> Sound:
    encoded = opened(data, name, decoding_of(data, name))
    picture = viewable(encoded.pixels(NEED))
    spread = int(np.diff(np.array(picture.getextrema())).max())  # Pillow is faster at this than NumPy by far
    sketch = picture.resize((SKETCH, SKETCH), Image.Resampling.BILINEAR)
    return Sound(encoded.head, hashlib.blake2b(data, digest_size=16).digest(), spread, sketch.tobytes())


CHUNK = 64  # items that a worker answers for at a time
TALK = logging.getLogger("vitral")

Chunk = Sequence[Item]


class Hand(NamedTuple):
    """A worker, its answers, and where in its chunk it is."""

    process: BaseProcess
    answers: Connection
    at: Shared  # (1,)

    def answer(self, store: Store, chunk: Chunk) -> list[Exam]:
        """The exams of the next chunk."""
        try:
            return self.answers.recv()
        except EOFError:
            self.process.join()
            item = chunk[int(self.at.array[0])]
            raise VitralError(
                f"a worker process was ended with exit code {self.process.exitcode} while it read this image",
                code="run.lost_process",
                where=store.address(item.name),
                hint="remove the image if it happens there again; if memory ran out, use --workers 1",
            ) from None


def examined(samples: Samples, workers: int) -> Generator[Examined, None, None]:
    """Each item with its exam, in the order of the items; with no workers, or few items, by this process."""
    if workers < 1 or len(samples.items) <= CHUNK:
        for item in samples.items:
            yield Examined(item, examine(samples.store, item))
        return
    chunks = [samples.items[start : start + CHUNK] for start in range(0, len(samples.items), CHUNK)]
    hands: list[Hand] = []
    try:
        for number in range(workers):
            hands.append(_hire(samples.store, chunks[number::workers]))
        for number, chunk in enumerate(chunks):
            yield from map(Examined, chunk, hands[number % workers].answer(samples.store, chunk))
    finally:
        for hand in hands:
            hand.process.kill()
        for hand in hands:
            hand.process.join()
            hand.answers.close()


def watched(exams: Generator[Examined, None, None], total: int) -> Iterator[Examined]:
    """The same, with a bar on stderr where that is a terminal and the talk is wanted."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    silent = not (console.is_terminal and TALK.isEnabledFor(logging.INFO))
    try:
        begun = list(islice(exams, 1))  # which starts the workers: nothing is forked once the bar has a thread
        yield from track(chain(begun, exams), "examining", total, console=console, transient=True, disable=silent)
    finally:
        exams.close()


def _hire(store: Store, chunks: Sequence[Chunk]) -> Hand:
    answers, end = USUAL.Pipe(duplex=False)
    at = share((1,), "int64", USUAL)
    process = USUAL.Process(target=_labour, args=(store, chunks, end, at), daemon=True)
    process.start()
    end.close()  # so that its death ends the answers
    return Hand(process, answers, at)


def _labour(store: Store, chunks: Sequence[Chunk], answers: Connection, at: Shared) -> None:
    """What a worker does. Interrupts are the parent's to answer; it ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for chunk in chunks:
        exams = []
        for place, item in enumerate(chunk):
            at.array[0] = place
            exams.append(examine(store, item))
        try:
            answers.send(exams)
        except BrokenPipeError:  # nobody is left to hear it
            return
