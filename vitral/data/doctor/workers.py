"""Every file examined, by several processes at once, with the results in order."""

import logging
import multiprocessing
import signal
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice

from vitral.data.doctor.examine import Exam, Examined, examine
from vitral.data.samples import Item, Samples, Store
from vitral.errors import VitralError

CHUNK = 64  # items that a worker takes at a time
TALK = logging.getLogger("vitral")


def examined(samples: Samples, workers: int) -> Generator[Examined, None, None]:
    """Each item with its exam, in the order of the items; with no workers, or few items, by this process."""
    if workers < 1 or len(samples.items) <= CHUNK:
        for item in samples.items:
            yield Examined(item, examine(samples.store, item))
        return
    chunks = [samples.items[start : start + CHUNK] for start in range(0, len(samples.items), CHUNK)]
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, initializer=_begin, initargs=(samples.store,))
    try:
        answers = [pool.submit(_examine_chunk, chunk) for chunk in chunks]
        for chunk, answer in zip(chunks, answers, strict=True):
            yield from map(Examined, chunk, _result(answer, chunk))
    except BaseException:  # an interrupt above all: nobody waits for the files at hand
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def watched(exams: Iterator[Examined], total: int) -> Iterator[Examined]:
    """The same, with a bar on stderr where that is a terminal and the talk is wanted."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    silent = not (console.is_terminal and TALK.isEnabledFor(logging.INFO))
    begun = list(
        islice(exams, 1)
    )  # workers are started by now: a process is not to be forked once the bar has a thread
    yield from track(chain(begun, exams), "examining", total, console=console, transient=True, disable=silent)


_store: Store  # of a worker process, for as long as it lives


def _begin(store: Store) -> None:
    """Make a worker ready. Interrupts are the parent's to answer; it ends the workers."""
    global _store  # noqa: PLW0603, sent once a process rather than once a chunk
    _store = store
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _examine_chunk(items: Sequence[Item]) -> list[Exam]:
    return [examine(_store, item) for item in items]


def _result(answer: Future[list[Exam]], items: Sequence[Item]) -> list[Exam]:
    try:
        return answer.result()
    except BrokenProcessPool:
        raise VitralError(
            "a worker process was ended from outside, perhaps for want of memory",
            where=f"{items[0].name} to {items[-1].name}, or soon after",
            remedy="give it less to do at once: --workers 1",
        ) from None
