"""The run folder: its paths, the environment of the run (environment.json), its time and memory (times.jsonl).

Every run has a new folder; nothing is overwritten. Times have a file of their own, so that metrics.jsonl is the same
to the byte when a run is repeated.
"""

import os
import platform
import re
import shlex
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path

import torch

from vitral import __version__
from vitral.core.config import Config
from vitral.core.errors import ConfigError, VitralError
from vitral.core.jsonl import JsonlLog, read_jsonl
from vitral.core.machine import cpu_count, cpu_name, peak_memory, total_memory
from vitral.core.storage import os_error_message

RUNS = Path("runs")


class RunFolder:
    """The paths of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.json"  # complete; `train --recipe` takes it
        self.environment = path / "environment.json"
        self.split = path / "split.csv"  # the split of every image
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"  # the bundle of the best validation
        self.last = path / "last"  # the bundle of the last step
        self.report = path / "report.html"

    def read_environment(self) -> "Environment":
        """The contents of environment.json."""
        return Environment.from_json(self.environment.read_bytes())


def refuse_existing(out: str) -> None:
    """Refuse an output folder that exists and is not empty."""
    path = Path(out).expanduser()
    if out and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        hint = "choose another folder"
        if RunFolder(path).recipe.exists():
            hint = f"{hint}; to resume the run in it: vitral train --resume {shlex.quote(out)}"
        raise ConfigError("already exists, and is not overwritten", code="config.path_exists", where=out, hint=hint)


def data_name(data: str) -> str:
    """A name for runs on the data at a path."""
    stem = re.split(r"[.*?{\[]", Path(data.rstrip("/")).name)[0]  # of `shards-{00..09}.tar` only `shards-`
    return stem.strip("-_ ") or "run"


def create_folder(out: str, data: str) -> RunFolder:
    """Create the folder `out`, or one in `runs` named after the data, with a number if that exists."""
    refuse_existing(out)
    name = data_name(data)
    for number in count(1):
        path = Path(out).expanduser() if out else RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True, exist_ok=bool(out))
        except FileExistsError:  # perhaps made by another process
            if out:
                raise
        except OSError as error:
            message, hint = f"cannot be created: {os_error_message(error)}", "choose a writable folder: --out"
            raise VitralError(message, code="file.write_failed", where=path, hint=hint) from error
        else:
            return RunFolder(path)
    raise AssertionError("count does not end")


def is_run(where: str) -> bool:
    """Whether there is a run in this folder."""
    return RunFolder(Path(where).expanduser()).recipe.is_file()


def find_run(where: str) -> RunFolder:
    """The folder of an existing run."""
    folder = RunFolder(Path(where).expanduser())
    if not is_run(where):
        message = "it has no recipe.json" if folder.path.is_dir() else "no such folder"
        hint = "give the folder that `vitral train` printed"
        raise ConfigError(f"not a run: {message}", code="config.not_found", where=where, hint=hint)
    return folder


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
        self._log = JsonlLog(folder / TIMES_FILE)

    def seconds(self) -> float:
        """Seconds since the session started."""
        return time.monotonic() - self._clock

    def add(self, step: int, images: int) -> TimeRecord:
        """Log a record for a step."""
        record = TimeRecord(
            step=step,
            seconds=round(self.seconds(), 3),
            images=images,
            started=self.started,
            peak_memory=peak_memory(self.device),
            threads=torch.get_num_threads(),
            processes=self.processes,
        )
        self._log.append(record.model_dump())
        return record

    def close(self) -> None:
        """Close the file."""
        self._log.close()


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
