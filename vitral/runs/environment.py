"""Where a run took place: the versions, the machine, the code, the data and the words that began it.

How long a run has taken: times.jsonl, apart from the record of what it found, which must not differ from run to run.
"""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from vitral import __version__
from vitral.core.config import Config
from vitral.core.jsonl import Journal, read
from vitral.core.machine import cores, processor
from vitral.core.memory import peak_memory, total

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


PATIENCE = 5.0  # seconds for git to answer; a repository on a network drive may never


class Revision(Config):
    """The code in a folder: its git commit, empty where there is none, and whether files differ from it."""

    commit: str = ""
    dirty: bool = False


class Environment(Config):
    """What environment.json holds."""

    vitral: str
    python: str
    torch: str
    numpy: str
    pillow: str
    platform: str
    processor: str
    cores: int  # that this process may use
    memory: int  # bytes
    gpus: tuple[str, ...]
    git: Revision
    data: str  # where it is
    fingerprint: str  # of the data
    recipe: str  # its hash
    command: str
    started: str  # ISO time, UTC


def environment(data: str, fingerprint: str, recipe: str, command: str) -> Environment:
    """Where this process runs, at this moment, for data at an address, by a recipe of this hash and a command."""
    return Environment(
        vitral=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=version("numpy"),
        pillow=version("pillow"),
        platform=platform.platform(),
        processor=processor(),
        cores=cores(),
        memory=total(),
        gpus=tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())),
        git=revision(Path.cwd()),
        data=data,
        fingerprint=fingerprint,
        recipe=recipe,
        command=command,
        started=now(),
    )


def revision(folder: Path) -> Revision:
    """The code in the repository that a folder belongs to; files that git does not know make nothing dirty."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else ""
    return Revision(commit=commit, dirty=bool(changes))


def _git(folder: Path, *words: str) -> str:
    """What git answers; nothing where there is no git, no repository, or no answer in time."""
    quiet = ["-c", "core.fsmonitor=false"]  # else a repository could name a program to be started
    try:
        answer = subprocess.run(
            ["git", *quiet, *words],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
