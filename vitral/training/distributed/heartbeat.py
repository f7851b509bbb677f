"""Detecting which process of a run was lost.

Each process increments a counter in the store that all share, and watches the counter of the next one. A process that
ends with an error reports it in the store; a process whose counter stands still was killed, or its machine was. All
read the first report, so every process names the same cause, and a process that is blocked in a collective is ended.

torchrun alone ends a job 1.5 s after a local process is killed, and names its rank. It does not notice a process that
hangs or a machine that is gone: after 60 s of a stopped process it had reported nothing, and the collective waits for
its timeout. Here the others end after `TIMEOUT + EXIT_GRACE`, and say which process, why, and how to resume.
"""

import json
import os
import sys
import threading
from typing import NamedTuple, Self

from torch.distributed.distributed_c10d import Store

from vitral.core.errors import VitralError
from vitral.data.loading.sampler import World

INTERVAL = 0.5  # seconds between two beats
TIMEOUT = 15.0  # seconds without a beat after which a process counts as lost
TIMEOUT_AFTER_ERROR = 3.0  # the same once a collective has failed
EXIT_GRACE = 8.0  # seconds in which a process may end by itself
END_KEY = "end"


class ProcessEnd(NamedTuple):
    """Which process ended, and how."""

    rank: int
    message: str


class Heartbeat:
    """Beats and watches while the context lasts."""

    def __init__(self, store: Store, world: World) -> None:
        self.store, self.world = store, world
        self.hint = "run the same command again with --resume and the run folder"
        self._next = (world.rank + 1) % world.size
        self._timeout = TIMEOUT
        self._end: ProcessEnd | None = None
        self._found, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()

    def report_end(self, message: str) -> None:
        """Tell the others why this process ends. Only the first report of any process counts."""
        try:
            self._report(ProcessEnd(self.world.rank, message))
        except RuntimeError:  # the store is gone, and with it the process that holds it
            return

    def find_lost(self) -> VitralError | None:
        """The loss of another process, if there was one; to be called after a collective has failed."""
        self._timeout = TIMEOUT_AFTER_ERROR
        self._found.wait(TIMEOUT_AFTER_ERROR + 4 * INTERVAL)
        return self._error(self._end) if self._end else None

    def _error(self, end: ProcessEnd) -> VitralError:
        message = f"process {end.rank} of {self.world.size} {end.message}"
        where = f"process {self.world.rank}, which waited for it"
        return VitralError(message, code="run.lost_process", where=where, hint=self.hint)

    def _report(self, end: ProcessEnd) -> None:
        self.store.compare_set(END_KEY, "", json.dumps(end))

    def _beat(self) -> None:
        count, silent = -1, 0.0
        while self._end is None:
            if self._closed.wait(INTERVAL):
                return
            try:
                self.store.add(f"beat {self.world.rank}", 1)
                now = self.store.add(f"beat {self._next}", 0)
                # Silence is counted in our own beats, not by a clock, so a suspended machine or job does not look lost.
                count, silent = now, silent + INTERVAL if now == count else 0.0
                if silent > self._timeout:
                    self._report(ProcessEnd(self._next, "was killed, or its machine cannot be reached"))
                if self.store.check([END_KEY]):
                    self._end = ProcessEnd(*json.loads(self.store.get(END_KEY)))
            except RuntimeError:
                self._end = ProcessEnd(0, "was killed, or its machine, which holds the store, cannot be reached")
        self._found.set()
        if not self._closed.wait(EXIT_GRACE):  # the main thread is blocked in a collective
            error = self._error(self._end)
            lines = f"error[{error.code}]: {error.message}\nwhere: {error.where}\nhint: {error.hint}"
            print(lines, file=sys.stderr, flush=True)
            os._exit(error.exit_code)
