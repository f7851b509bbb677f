"""Knowing which process of a run was lost.

Each process counts up a number of its own in the store that all of them share, and watches that of the next. Whoever
leaves with an error says so first; whoever falls silent was killed, or its machine was. All read the first such end,
so every process names the same cause. A process that cannot leave by itself, since it waits for the lost one in a
library, is ended.
"""

import json
import os
import sys
import threading
from types import TracebackType
from typing import NamedTuple, Self

from torch.distributed.distributed_c10d import Store

from vitral.core.errors import VitralError
from vitral.data.loading.sampler import World

BEAT = 0.5  # seconds between two beats
SILENCE = 15.0  # seconds without a beat, after which a process counts as lost
SUSPECT = 3.0  # the same once something else has failed
GRACE = 8.0  # seconds in which a process may leave by itself
END = "end"


class End(NamedTuple):
    """How a process ended, and which."""

    rank: int
    message: str


class Lost(VitralError):
    """Another process of the run has ended."""


class Pulse:
    """Beats while the context lasts, and listens to the others."""

    def __init__(self, store: Store, world: World) -> None:
        self.store, self.world = store, world
        self.hint = "start the same command again with --resume and the folder of the run"
        self._next = (world.rank + 1) % world.size
        self._suspicious = False
        self._end: End | None = None
        self._found, self._left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()

    def tell(self, message: str) -> None:
        """Say why this process leaves."""
        try:
            self._say(End(self.world.rank, message))
        except RuntimeError:  # the store is gone, and with it all who could listen
            return

    def lost(self) -> Lost | None:
        """The loss of another process, if there was one: what to look for when something has failed here."""
        self._suspicious = True
        self._found.wait(SUSPECT + 4 * BEAT)
        return self._loss() if self._end else None

    def _loss(self) -> Lost:
        assert self._end is not None
        message = f"process {self._end.rank} of {self.world.size} {self._end.message}"
        where = f"process {self.world.rank}, which waited for it"
        return Lost(message, code="run.lost_process", where=where, hint=self.hint)

    def _say(self, end: End) -> None:
        self.store.compare_set(END, "", json.dumps(end))  # only the first is kept

    def _beat(self) -> None:
        count, silent = -1, 0.0
        while self._end is None:
            if self._left.wait(BEAT):
                return
            try:
                self.store.add(f"beat {self.world.rank}", 1)
                now = self.store.add(f"beat {self._next}", 0)
                # Told by our own beats, not by a clock: a machine that sleeps or a job that is stopped loses nobody.
                count, silent = now, silent + BEAT if now == count else 0.0
                if silent > (SUSPECT if self._suspicious else SILENCE):
                    self._say(End(self._next, "was killed, or its machine cannot be reached"))
                if self.store.check([END]):
                    self._end = End(*json.loads(self.store.get(END)))
            except RuntimeError:
                self._end = End(0, "or the machine where the processes meet cannot be reached")
        self._found.set()
        if not self._left.wait(GRACE):
            self._leave(self._loss())

    def _leave(self, loss: Lost) -> None:
        """End this process: its main thread waits for one that is gone, and cannot be interrupted."""
        print(
            f"error[{loss.code}]: {loss.message}\nwhere: {loss.where}\nhint: {loss.hint}", file=sys.stderr, flush=True
        )
        os._exit(loss.exit_code)
