"""The run folder: a new one for every run, never one that is there already."""

import re
import shlex
from itertools import count
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import ConfigError, VitralError

RUNS = Path("runs")


class Folder(NamedTuple):
    """Where everything of a run is."""

    path: Path

    @property
    def recipe(self) -> Path:
        """All that is needed to do it again."""
        return self.path / "recipe.json"

    @property
    def environment(self) -> Path:
        """What it ran on, and the fingerprint of its data."""
        return self.path / "environment.json"

    @property
    def split(self) -> Path:
        """Which image served what."""
        return self.path / "split.csv"

    @property
    def checkpoints(self) -> Path:
        """States that the run can go on from."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The bundle of the best evaluation."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The bundle of the last step."""
        return self.path / "last"

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.path / "report.html"


def refuse_taken(out: str) -> None:
    """Refuse a folder that was asked for, unless it is new or empty."""
    path = Path(out).expanduser()
    if out and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        hint = "choose another folder"
        if Folder(path).recipe.exists():
            hint = f"{hint}; to go on with the run in it: vitral train --resume {shlex.quote(out)}"
        message = "is there already, and nothing is overwritten"
        raise ConfigError(message, code="config.path_exists", where=out, hint=hint)


def claimed(out: str, data: str) -> Folder:
    """A new folder: the one asked for, or one in `runs` named after the data, with a number if there was one before."""
    if out:
        refuse_taken(out)
        return _made(Path(out).expanduser(), there=True)
    stem = re.split(r"[.*?{\[]", Path(data.rstrip("/")).name)[0]  # of `shards-{00..09}.tar` only `shards-`
    name = stem.strip("-_ ") or "run"
    for number in count(1):
        try:
            return _made(RUNS / (name if number == 1 else f"{name}-{number}"), there=False)
        except FileExistsError:  # perhaps made this very moment
            continue
    raise AssertionError("the numbers do not end")


def found(where: str) -> Folder:
    """The folder of a run that was begun."""
    folder = Folder(Path(where).expanduser())
    if not folder.recipe.is_file():
        message = "holds no recipe.json" if folder.path.is_dir() else "no such folder"
        hint = "give the folder that `vitral train` made"
        raise ConfigError(f"not a run: {message}", code="config.not_found", where=where, hint=hint)
    return folder


def _made(path: Path, there: bool) -> Folder:
    """The folder, made unless it may be there."""
    try:
        path.mkdir(parents=True, exist_ok=there)
    except FileExistsError:
        raise
    except OSError as error:
        message = f"cannot be made: {(error.strerror or str(error)).lower()}"
        hint = "choose a folder that you may write to: --out"
        raise VitralError(message, code="file.write_failed", where=str(path), hint=hint) from error
    return Folder(path)
