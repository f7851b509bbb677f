"""How long a run has taken: times.jsonl, apart from the record of what it found, which must not differ from run to run.

A run that is stopped and resumed has several sessions; each counts from its own start.
"""

import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from vitral.config import Config
from vitral.train.journal import Journal, read
from vitral.train.memory import peak_memory

FILE = "times.jsonl"


class Moment(Config):
    """What a session had cost when it came to a step."""

    step: int
    seconds: float  # of this session
    images: int  # seen in this session
    started: str  # the session; ISO time, UTC
    peak_memory: int  # bytes
    threads: int
    processes: int


class Times:
    """The clock of a session, which begins now."""

    def __init__(self, folder: Path, processes: int, device: torch.device) -> None:
        self.processes, self.device = processes, device
        self.started = now()
        self._clock = time.monotonic()
        self._journal = Journal(folder / FILE)

    def seconds(self) -> float:
        """How long the session has lasted."""
        return time.monotonic() - self._clock

    def add(self, step: int, images: int) -> Moment:
        """Note what the session has cost up to a step, with so many images seen."""
        moment = Moment(
            step=step,
            seconds=round(self.seconds(), 3),
            images=images,
            started=self.started,
            peak_memory=peak_memory(self.device),
            threads=torch.get_num_threads(),
            processes=self.processes,
        )
        self._journal.add(moment.model_dump())
        return moment

    def close(self) -> None:
        """Write no more."""
        self._journal.close()


def moments(folder: Path) -> list[Moment]:
    """What was noted of the run in a folder, over all its sessions."""
    return [Moment.parse(record) for record in read(folder / FILE)]


def spent(noted: list[Moment]) -> float:
    """Seconds that all sessions took together, each up to its last moment."""
    return sum({moment.started: moment.seconds for moment in noted}.values())


def now() -> str:
    """The time in UTC, as ISO writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
