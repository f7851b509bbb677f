"""Every file examined, by several processes at once, with the results in order.

Worker w of n takes the chunks w, w + n, w + 2n ... and answers through a pipe of its own. They share no lock and no
queue, so that they can be killed at any instant: an interrupt must never hang.
"""

import logging
import signal
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from vitral.data.doctor.examine import Exam, Examined, examine
from vitral.data.loader.shared import USUAL, Shared, share
from vitral.data.samples import Item, Samples, Store
from vitral.errors import VitralError

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
                remedy="remove the image if it happens there again; if memory ran out, use --workers 1",
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
