"""The run folder: its paths, the environment of the run (environment.json), its time and memory (times.jsonl).

Every run has a new folder; nothing is overwritten. Times have a file of their own, so that metrics.jsonl is the same
to the byte when a run is repeated.
"""

import json
import logging
import os
import platform
import re
import shlex
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path

import torch

from vitral import __version__
from vitral.core.config import Config
from vitral.core.errors import ConfigError, VitralError
from vitral.core.files import read_file
from vitral.core.jsonl import JsonlLog, read_lines
from vitral.core.machine import cpu_count, cpu_name, peak_memory, total_memory
from vitral.core.manifest import MANIFEST
from vitral.core.storage import LOCK_FILE, STORAGE, make_folders, os_error_message, write_file_atomically

log = logging.getLogger("vitral")
RUNS = Path("runs")
HAS_MANIFEST = 2  # the format of environment.json since which a run has a manifest


class RunFolder:
    """The paths of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.json"  # complete; `train --recipe` takes it
        self.environment = path / "environment.json"
        self.split = path / "split.csv"  # the split of every image
        self.manifest = path / MANIFEST  # of recipe, environment and split, which never change
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"  # the bundle of the best validation
        self.last = path / "last"  # the bundle of the last step
        self.report = path / "report.html"
        self.fingerprint = path / "fingerprint.json"  # the hash of the contents of the data, once it is known
        self.replay = path / "replay.json"  # the recipe with the steps that a time limit has planned
        self.done = path / "done.json"  # written last: training, bundles, evaluation and report are complete

    def read_environment(self) -> "Environment":
        """The contents of environment.json."""
        return Environment.from_json(read_file(self.environment))


# What `create_run` writes before recipe.json, which makes the folder a run, and the drafts of these files.
SETUP_FILES = re.compile(
    r"\.?(environment\.json|manifest\.json|split\.csv)|"
    r"\.?(environment\.json|manifest\.json|split\.csv|recipe\.json)\.tmp.*"
)


def refuse_existing(out: str) -> None:
    """Refuse an output folder that exists, unless it is empty or has only what a killed start left."""
    path = Path(out).expanduser()
    if out and path.exists() and not (path.is_dir() and is_claimable(path)):
        hint = "choose another folder"
        if RunFolder(path).recipe.exists():
            hint = f"{hint}; to resume the run in it: vitral train --resume {shlex.quote(out)}"
        raise ConfigError("already exists, and is not overwritten", code="config.path_exists", where=out, hint=hint)


def is_claimable(path: Path) -> bool:
    """Whether a folder is empty, or has only the set-up files of a process that was killed before recipe.json.

    The lock is made first, so a folder without it has files of somebody else, whatever their names.
    """
    with os.scandir(path) as entries:
        found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    known = all(regular and (name == LOCK_FILE or SETUP_FILES.fullmatch(name)) for name, regular in found.items())
    return not found or (LOCK_FILE in found and known)


def remove_setup_files(folder: RunFolder) -> None:
    """Remove what a killed start left in a folder; the caller holds its lock."""
    for path in folder.path.iterdir():
        if SETUP_FILES.fullmatch(path.name):
            STORAGE.remove(path)


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
            make_folders(path, exist_ok=bool(out))
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


def is_finished(where: str) -> bool:
    """Whether the run in this folder has nothing left to do."""
    return is_run(where) and RunFolder(Path(where).expanduser()).done.is_file()


def mark_finished(folder: RunFolder, step: int) -> None:
    """Record that the run has nothing left to do after its last step."""
    write_file_atomically(folder.done, json.dumps({"format": 1, "step": step}) + "\n")


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
    cpu_seconds: float = 0.0  # of this session in the main process, without its workers; 0 in older runs


class TimeLog:
    """Logs the time and memory of a session that starts now."""

    def __init__(self, folder: Path, processes: int, device: torch.device) -> None:
        self.processes, self.device = processes, device
        self.started = utc_now()
        self._clock, self._cpu = time.monotonic(), time.process_time()
        self._log: JsonlLog | None = None
        try:
            self._log = JsonlLog(folder / TIMES_FILE)
        except VitralError as error:  # a run does not depend on what it costs
            log.warning(f"times are not recorded: {error}")
        if damaged := len(_time_lines(folder)) - len(read_times(folder)):
            log.warning(f"{folder / TIMES_FILE}: {damaged:,} damaged lines are not counted in the cost of the run")

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
            cpu_seconds=round(time.process_time() - self._cpu, 3),
        )
        if self._log is not None:
            self._log.append(record.model_dump())
        return record

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


def read_times(folder: Path) -> list[TimeRecord]:
    """The records of a run, over all its sessions; damaged lines are left out, since nothing but a sum is lost."""
    found = []
    for line in _time_lines(folder):
        with suppress(ConfigError):
            found.append(TimeRecord.from_json(line))
    return found


def _time_lines(folder: Path) -> list[bytes]:
    try:
        return read_lines(folder / TIMES_FILE)
    except VitralError:  # it cannot be read
        return []


def total_seconds(records: list[TimeRecord]) -> float:
    """The seconds of all sessions together, each up to its last record."""
    return sum({record.started: record.seconds for record in records}.values())


def total_cpu_seconds(records: list[TimeRecord]) -> float:
    """The CPU seconds of all sessions together, each up to its last record."""
    return sum({record.started: record.cpu_seconds for record in records}.values())


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

    format: int = 1  # since 2, the run has a manifest
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
        format=HAS_MANIFEST,
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
