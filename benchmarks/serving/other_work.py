"""How busy the machine is with other work while a cell is measured: a figure of a busy machine is none."""

import os
import threading
from pathlib import Path
from typing import Self

from benchmarks.serving.process import descendants

TICKS = os.sysconf("SC_CLK_TCK")
EVERY = 1.0  # seconds between two looks at the processes of this benchmark


class OtherWork:
    """The share of the processors that others had while the `with` lasted, the host of a virtual machine included."""

    share = 0.0

    def __enter__(self) -> Self:
        self._own: dict[int, float] = {}  # seconds of the processes of this benchmark, those that have ended included
        self._look()
        self._before = sum(self._own.values())
        self._busy, self._all = machine_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        busy, everything = machine_seconds()
        others = busy - self._busy - (sum(self._own.values()) - self._before)
        self.share = max(0.0, others / max(everything - self._all, 1e-9))

    def _work(self) -> None:
        while not self._ended.wait(EVERY):
            self._look()

    def _look(self) -> None:
        for process in descendants(os.getpid()):
            self._own[process] = max(self._own.get(process, 0.0), process_seconds(process))


def machine_seconds() -> tuple[float, float]:
    """Seconds of all processors since the start: those at work, and all."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, idle, waiting, *rest = (int(each) / TICKS for each in fields)
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + waiting


def process_seconds(process: int) -> float:
    """Seconds of CPU of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
