"""The folder of an experiment: what was asked for, its runs in sweeps, what was measured of them, and the results.

paper/table8-tiny/
  experiment.json       the name, the scale and the data
  rates/ cells/         sweeps of ordinary runs: one that chooses learning rates, one of all arms and seeds
  rates-2/ cells-2/     the same for arms that start from the weights of others
  measured/             the numbers of every cell, written once
  results.json  table.txt  figure.png
"""

from pathlib import Path
from typing import Literal

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.core.files import read_file
from vitral.core.storage import new_folder, write_file_atomically
from vitral.experiments.experiment import Scale
from vitral.runs.sweeps.folder import SweepFolder

EXPERIMENTS = Path("paper")


class Request(Config):
    """The contents of experiment.json."""

    format: Literal[1] = 1
    name: str
    scale: Scale
    data: str = ""  # by default that of the scale
    root: str = ""
    threads: int = 1  # of a run: bits depend on it


class ExperimentFolder:
    """The paths of an experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.request = path / "experiment.json"
        self.results = path / "results.json"
        self.table = path / "table.txt"
        self.figure = path / "figure.png"

    def rates(self, level: int) -> SweepFolder:
        """The sweep that chooses the learning rates of a level of arms."""
        return SweepFolder(self.path / f"rates{_suffix(level)}")

    def cells(self, level: int) -> SweepFolder:
        """The sweep of the arms of a level, of all seeds."""
        return SweepFolder(self.path / f"cells{_suffix(level)}")

    def measured(self, level: int, name: str) -> Path:
        """The numbers of a cell."""
        return self.path / "measured" / f"{level + 1}-{name}.json"

    def read_request(self) -> Request:
        """What was asked for; an error if this is no experiment."""
        if not self.request.is_file():
            message, hint = "not an experiment: it has no experiment.json", "give the folder of `vitral paper NAME`"
            raise ConfigError(message, code="config.not_found", where=self.path, hint=hint)
        return Request.from_json(read_file(self.request))


def _suffix(level: int) -> str:
    return f"-{level + 1}" if level else ""


def default_path(name: str, scale: str) -> Path:
    """The folder of an experiment if none is named."""
    return EXPERIMENTS / f"{name}-{scale}"


def create_experiment(out: Path, request: Request) -> ExperimentFolder:
    """Create the folder of an experiment."""
    if out.exists():
        hint = f"resume it: vitral paper {request.name} --scale {request.scale} --resume; or choose another --out"
        raise ConfigError("already exists, and is not overwritten", code="config.path_exists", where=out, hint=hint)
    with new_folder(out) as draft:
        write_file_atomically(ExperimentFolder(draft).request, request.to_json() + "\n")
    return ExperimentFolder(out)
