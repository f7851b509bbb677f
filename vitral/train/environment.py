"""Where a run took place: the versions, the machine, the code, the data and the words that began it."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from vitral import __version__
from vitral.config import Config
from vitral.machine import cores, processor
from vitral.train.memory import total
from vitral.train.times import now

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
