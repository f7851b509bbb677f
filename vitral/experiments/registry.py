"""Experiments by name: every file in `tables`, `figures` and `studies` is one, and is named as its file."""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitral.core.errors import ConfigError, suggest_choice

if TYPE_CHECKING:
    from vitral.experiments.experiment import Experiment

HOME = Path(__file__).parent
FOLDERS = ("tables", "figures", "studies")


class Entry(NamedTuple):
    """An experiment that ships: its name, and the first line of its file's docstring."""

    name: str
    summary: str


def experiment_files() -> dict[str, Path]:
    """The file of each experiment, by name."""
    files = (path for folder in FOLDERS for path in sorted((HOME / folder).glob("*.py"), key=_order))
    return {path.stem: path for path in files if path.stem != "__init__"}


def _order(path: Path) -> tuple[str, int]:
    letters = path.stem.rstrip("0123456789")
    return letters, int(path.stem[len(letters) :] or 0)


def list_experiments() -> tuple[Entry, ...]:
    """The experiments that ship, without importing them."""
    return tuple(Entry(name, _summary(path)) for name, path in experiment_files().items())


def _summary(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0].rstrip(".")


def get_experiment(name: str) -> "Experiment":
    """The experiment of that name."""
    files = experiment_files()
    if name not in files:
        hint = suggest_choice(name, files)
        raise ConfigError(f"unknown experiment {name!r}", code="config.unknown_name", where="EXPERIMENT", hint=hint)
    module = import_module(f"vitral.experiments.{files[name].parent.name}.{name}")
    experiment: Experiment = module.EXPERIMENT
    return experiment
