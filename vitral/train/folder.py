"""The run folder: a new one for every run, never one that is there already."""

import re
from itertools import count
from pathlib import Path
from typing import NamedTuple

from vitral.errors import ConfigError, VitralError

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


def claimed(out: str, data: str) -> Folder:
    """A new folder: the one asked for, or one in `runs` named after the data, with a number if there was one before."""
    if out:
        path = Path(out).expanduser()
        if path.is_dir() and not any(path.iterdir()):
            return Folder(path)
        if path.exists():
            remedy = f"choose another folder; to go on with the run in it: vitral train --resume {out}"
            raise ConfigError("is there already, and a run is never overwritten", where=out, remedy=remedy)
        return _made(path)
    name = (
        re.split(r"[.*?{\[]", Path(data.rstrip("/")).name)[0].strip("-_ ") or "run"
    )  # `shards-{00..09}.tar` is shards
    paths = (RUNS / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return _made(next(path for path in paths if not path.exists()))


def found(where: str) -> Folder:
    """The folder of a run that was begun."""
    folder = Folder(Path(where).expanduser())
    if not folder.recipe.is_file():
        what = "holds no recipe.json" if folder.path.is_dir() else "no such folder"
        raise ConfigError(f"not a run: {what}", where=where, remedy="give the folder that `vitral train` made")
    return folder


def _made(path: Path) -> Folder:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        what = f"cannot be made: {(error.strerror or str(error)).lower()}"
        raise VitralError(what, where=str(path), remedy="choose a folder that you may write to: --out") from error
    return Folder(path)
