"""One budget of memory for all decoders of a command: the threads of its process, and its workers.

A decoder reserves what an image takes, by the header of its file, before it decodes it. Images that fit together are
decoded together. One that is larger than the budget is decoded alone. Small ones (a 64th of the budget, 16 MB) need no
reservation. So decoding takes at most the budget, or what the largest image takes, and 16 MB for each decoder.

A worker that is killed gives nothing back. Who has waited for long therefore goes on without: memory is then less
bounded, but nothing hangs.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkContext, SpawnContext
from typing import Protocol

DECODE_BYTES = 2**30  # by default
UNITS = 64  # that a budget is divided into
PATIENCE = 30.0  # seconds that a decoder waits at most; no image within the limits takes as long


class Semaphore(Protocol):
    """A semaphore or lock, of threads or of processes."""

    def acquire(self, block: bool, timeout: float, /) -> bool:
        """Wait for a unit and take it, or give up after some seconds."""
        ...

    def release(self) -> None:
        """Give a unit back."""
        ...


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes, in units that decoders take and give back."""

    total: int
    units: Semaphore
    turn: Semaphore  # a lock: who waits for many units is served before who comes later
    shared_by: str = ""  # the start method of the processes that share it

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Hold this many bytes, once they are free; at most all of them."""
        count, taken = min(-(-size * UNITS // self.total), UNITS), 0
        if count <= 1:
            yield
            return
        end = time.monotonic() + PATIENCE
        try:
            # One at a time: two that hold half of what they need would wait for each other.
            if self.turn.acquire(True, PATIENCE):
                try:
                    while taken < count and self.units.acquire(True, max(0.0, end - time.monotonic())):
                        taken += 1
                finally:
                    self.turn.release()
            yield
        finally:
            for _ in range(taken):
                self.units.release()


def thread_budget(total: int) -> MemoryBudget:
    """A budget of the threads of one process."""
    return MemoryBudget(total, threading.Semaphore(UNITS), threading.Lock())


_budget = thread_budget(DECODE_BYTES)


def process_budget() -> MemoryBudget:
    """The budget of this process."""
    return _budget


def set_budget(budget: MemoryBudget) -> None:
    """Replace the budget of this process; decoders and workers that have started keep theirs."""
    global _budget  # noqa: PLW0603, one of the process
    _budget = budget


def share_budget(context: ForkContext | SpawnContext) -> MemoryBudget:
    """The budget of this process, in a form that is sent to its workers."""
    method = context.get_start_method()
    if _budget.shared_by != method:
        set_budget(MemoryBudget(_budget.total, context.Semaphore(UNITS), context.Lock(), method))
    return _budget


def renew_budget() -> None:
    """Start with a full budget: workers have ended, perhaps while they held units."""
    set_budget(thread_budget(_budget.total))


if sys.platform != "win32":  # in the child of a fork, the threads that held units do not exist
    os.register_at_fork(after_in_child=renew_budget)
