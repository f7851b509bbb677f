"""The environment of a run (environment.json) and its time and memory (times.jsonl).

Times have a file of their own, so that metrics.jsonl is the same to the byte when a run is repeated.
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
from vitral.core.jsonl import JsonlLog, read_jsonl
from vitral.core.machine import cpu_count, cpu_name
from vitral.core.memory import peak_memory, total_memory

TIMES_FILE = "times.jsonl"


class TimeRecord(Config):
    """The time and memory of a session up to a step."""

    step: int
    seconds: float  # of this session
    images: int  # seen in this session
    started: str  # the session; ISO time, UTC
    peak_memory: int  # bytes
    threads: int
    processes: int


class TimeLog:
    """Logs the time and memory of a session that starts now."""

    def __init__(self, folder: Path, processes: int, device: torch.device) -> None:
        self.processes, self.device = processes, device
        self.started = utc_now()
        self._clock = time.monotonic()
        self._journal = JsonlLog(folder / TIMES_FILE)

    def seconds(self) -> float:
        """Seconds since the session started."""
        return time.monotonic() - self._clock

    def add(self, step: int, images: int) -> TimeRecord:
        """Log a record for a step."""
        moment = TimeRecord(
            step=step,
            seconds=round(self.seconds(), 3),
            images=images,
            started=self.started,
            peak_memory=peak_memory(self.device),
            threads=torch.get_num_threads(),
            processes=self.processes,
        )
        self._journal.append(moment.model_dump())
        return moment

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


def read_times(folder: Path) -> list[TimeRecord]:
    """The records of a run, over all its sessions."""
    return [TimeRecord.parse(record) for record in read_jsonl(folder / TIMES_FILE)]


def total_seconds(records: list[TimeRecord]) -> float:
    """The seconds of all sessions together, each up to its last record."""
    return sum({record.started: record.seconds for record in records}.values())


def utc_now() -> str:
    """The current time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


GIT_TIMEOUT = 5.0  # seconds; a repository on a network drive may never answer


class GitRevision(Config):
    """The git commit of a folder, empty without a repository, and whether tracked files differ from it."""

    commit: str = ""
    dirty: bool = False


class Environment(Config):
    """The contents of environment.json."""

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
    git: GitRevision
    data: str  # where it is
    fingerprint: str  # of the data
    recipe: str  # its hash
    command: str
    started: str  # ISO time, UTC


def capture_environment(data: str, fingerprint: str, recipe: str, command: str) -> Environment:
    """The environment of this process, with the data, the recipe's hash and the command of a run."""
    return Environment(
        vitral=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=version("numpy"),
        pillow=version("pillow"),
        platform=platform.platform(),
        processor=cpu_name(),
        cores=cpu_count(),
        memory=total_memory(),
        gpus=tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())),
        git=git_revision(Path.cwd()),
        data=data,
        fingerprint=fingerprint,
        recipe=recipe,
        command=command,
        started=utc_now(),
    )


def git_revision(folder: Path) -> GitRevision:
    """The revision of the repository that a folder belongs to. Untracked files are ignored."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else ""
    return GitRevision(commit=commit, dirty=bool(changes))


def _git(folder: Path, *arguments: str) -> str:
    """The output of a git command; empty without git, without a repository, or after a timeout."""
    options = ["-c", "core.fsmonitor=false"]  # a repository could start a program by this setting
    try:
        answer = subprocess.run(
            ["git", *options, *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
