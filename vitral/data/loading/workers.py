"""The crew: worker processes that fill batches, each its own rows of every one, some steps ahead.

Worker w of n fills the rows w, w + n, w + 2n ... of a batch, so there is nothing to hand out: a worker needs to know
only when a place in the ring of batches is free, and tells when its rows are filled.
"""

import gc
import os
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Semaphore
from multiprocessing.util import Finalize
from typing import Protocol

import torch

from vitral.core.errors import DataError, VitralError
from vitral.data.loading.shared_memory import Context, Shared, share

PATIENCE = 1.0  # seconds between two looks whether the process that started a worker is still there
FAREWELL = 10.0  # seconds for all workers to finish their images before they are killed
AHEAD = 4  # batches in the ring


class Work(Protocol):
    """What a crew does. It travels to the workers."""

    def rows(self, step: int) -> int:
        """How many rows the batch of a step has."""
        ...

    def fill(self, step: int, row: int, slot: int) -> None:
        """Fill one row of the batch in a place of the ring."""
        ...

    def name(self, step: int, row: int) -> str:
        """What a message calls the image of a row."""
        ...


@dataclass(frozen=True)
class Failure:
    """An error on its way from a worker: exceptions themselves lose their parts in the post."""

    kind: type[VitralError]
    message: str
    code: str
    where: str
    hint: str
    story: str = ""  # the traceback of a fault, which is lost with the worker

    def error(self) -> VitralError:
        error = self.kind(self.message, code=self.code, where=self.where, hint=self.hint)
        if self.story:
            error.add_note(self.story)
        return error


@dataclass(frozen=True)
class Bench:
    """One worker's place: what it fills, and how it and the crew hear of each other."""

    number: int
    crew: int
    free: Semaphore  # counts the slots of the ring that this worker may fill
    at: Shared  # (workers, 2): step and row that each worker is at, the row -1 while it waits
    over: Shared  # (1,): true once the crew is sent home
    steps: range
    work: Work


class Crew:
    """Workers that fill the batches of a range of steps, in turn."""

    def __init__(self, work: Work, steps: range, workers: int, context: Context) -> None:
        self.work, self.steps = work, steps
        self.at = share((workers, 2), "int64", context)
        self.at.array[:] = -1
        self.over = share((1,), "bool", context)
        self.frees = [context.Semaphore(AHEAD) for _ in range(workers)]
        # Before Python, at its own end, terminates daemons and waits for them.
        Finalize(self, send_home, (self.over,), exitpriority=1)
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        try:
            for number, free in enumerate(self.frees):
                here, there = context.Pipe(duplex=False)
                bench = Bench(number, workers, free, self.at, self.over, steps, work)
                process = context.Process(target=labour, args=(bench, there, os.getpid()), daemon=True)
                process.start()
                there.close()  # so that its death closes the pipe
                self.pipes.append(here)
                self.processes.append(process)
        except BaseException:  # an interrupt, or no more processes to be had: those that began would wait for ever
            self.close()
            raise

    def slots(self) -> Iterator[int]:
        """The slot of the ring with each step's batch, filled; it is filled anew once the next one is asked for."""
        for step in self.steps:
            for number in range(len(self.pipes)):
                self._await(number)
            yield step % AHEAD
            for free in self.frees:
                free.release()

    def close(self) -> bool:
        """End the workers, and say whether all went in peace: one that was killed may have left things half done.

        What they had prepared is prepared again by whoever goes on.
        """
        send_home(self.over)
        for free in self.frees:
            free.release()
        deadline = time.monotonic() + FAREWELL
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.exitcode is None:
                process.kill()
                process.join()
        peaceful = all(process.exitcode == 0 for process in self.processes)
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.close()
            pipe.close()
        return peaceful

    def _await(self, number: int) -> None:
        """Wait until a worker has filled its rows of the next batch."""
        pipe = self.pipes[number]
        while not pipe.poll():  # the end of a dead worker's pipe counts as news
            codes = [process.exitcode for process in self.processes]  # once: one that dies after this ends the wait
            for other, code in enumerate(codes):
                if code:  # it may have died with the lock that all others wait for
                    raise self._death(other)
            wait([pipe, *(hand.sentinel for hand, code in zip(self.processes, codes, strict=True) if code is None)])
        try:
            failure = pipe.recv()
        except EOFError:
            raise self._death(number) from None
        if failure is not None:
            raise failure.error()

    def _death(self, number: int) -> VitralError:
        process = self.processes[number]
        process.join()
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        step, row = self.at.array[number].tolist()
        memory = "if memory ran out, use fewer workers or smaller batches"
        if row < 0:
            return VitralError(f"a worker was {how} while it read no image", code="run.lost_process", hint=memory)
        hint = f"remove the image if it happens there again; {memory}"
        message = f"a worker was {how} while it read this image"
        return DataError(message, code="data.lost_process", where=self.work.name(step, row), hint=hint)


def send_home(over: Shared) -> None:
    """Have the workers go as soon as they look, and obey a signal to end."""
    over.array[0] = True


def labour(bench: Bench, pipe: Connection, parent: int) -> None:
    """What a worker does all day."""
    # The terminal, and torchrun, tell everyone; but the crew is ended by who started it, perhaps after a last step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0) if bench.over.array[0] else None)
    torch.set_num_threads(1)
    gc.freeze()  # or each collection would copy the pages of all that was loaded before the fork
    for step in bench.steps:
        while not bench.free.acquire(timeout=PATIENCE):
            if os.getppid() != parent:
                return
        failure = _rows(bench, step)
        if bench.over.array[0]:
            return
        pipe.send(failure)
        if failure is not None:
            return


def _rows(bench: Bench, step: int) -> Failure | None:
    for row in range(bench.number, bench.work.rows(step), bench.crew):
        if bench.over.array[0]:
            return None
        bench.at.array[bench.number] = step, row
        try:
            bench.work.fill(step, row, step % AHEAD)
        except VitralError as error:
            return Failure(type(error), error.message, error.code, error.where, error.hint)
        except Exception as error:  # anything else is a fault of ours, and must still name the image
            message = f"{type(error).__name__}: {error}"
            name = bench.work.name(step, row)
            hint = "report it: vitral is at fault"
            return Failure(VitralError, message, "internal.unexpected", name, hint, traceback.format_exc())
    bench.at.array[bench.number] = step, -1
    return None
