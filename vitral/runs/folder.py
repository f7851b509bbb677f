"""The run folder: every run has a new one; nothing is overwritten."""

import re
import shlex
from itertools import count
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import ConfigError, VitralError

RUNS = Path("runs")


class RunFolder(NamedTuple):
    """The paths of a run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The complete recipe, which `train --recipe` takes."""
        return self.path / "recipe.json"

    @property
    def environment(self) -> Path:
        """Versions, machine, and the fingerprint of the data."""
        return self.path / "environment.json"

    @property
    def split(self) -> Path:
        """The split of every image."""
        return self.path / "split.csv"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints to resume from."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The bundle of the best validation."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The bundle of the last step."""
        return self.path / "last"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"


def refuse_existing(out: str) -> None:
    """Refuse an output folder that exists and is not empty."""
    path = Path(out).expanduser()
    if out and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        hint = "choose another folder"
        if RunFolder(path).recipe.exists():
            hint = f"{hint}; to resume the run in it: vitral train --resume {shlex.quote(out)}"
        message = "already exists, and is not overwritten"
        raise ConfigError(message, code="config.path_exists", where=out, hint=hint)


def create_folder(out: str, data: str) -> RunFolder:
    """Create the folder `out`, or one in `runs` named after the data, with a number if that exists."""
    if out:
        refuse_existing(out)
        return _make(Path(out).expanduser(), exist_ok=True)
    stem = re.split(r"[.*?{\[]", Path(data.rstrip("/")).name)[0]  # of `shards-{00..09}.tar` only `shards-`
    name = stem.strip("-_ ") or "run"
    for number in count(1):
        try:
            return _make(RUNS / (name if number == 1 else f"{name}-{number}"), exist_ok=False)
        except FileExistsError:  # perhaps made by another process
            continue
    raise AssertionError("the numbers do not end")


def find_run(where: str) -> RunFolder:
    """The folder of an existing run."""
    folder = RunFolder(Path(where).expanduser())
    if not folder.recipe.is_file():
        message = "it has no recipe.json" if folder.path.is_dir() else "no such folder"
        hint = "give the folder that `vitral train` printed"
        raise ConfigError(f"not a run: {message}", code="config.not_found", where=where, hint=hint)
    return folder


def _make(path: Path, exist_ok: bool) -> RunFolder:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        message = f"cannot be created: {(error.strerror or str(error)).lower()}"
        hint = "choose a writable folder: --out"
        raise VitralError(message, code="file.write_failed", where=path, hint=hint) from error
    return RunFolder(path)
