"""The folder of a self-training: its plan, and for each round a manifest and an ordinary run.

selftrain.json      all that is needed to go on after a stop
round-0/            the run of the first teacher, on labeled images alone
round-1.csv         the images of the next run: the labeled ones, and those that round-0 has labeled
round-1/            the run of the student, which is the next teacher
results.json        accuracy and images of every round
"""

import csv
import os
import shlex
from collections.abc import Iterable, Mapping
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.core.files import read_file
from vitral.core.storage import new_folder, write_file_atomically
from vitral.recipes.recipe import Recipe
from vitral.runs.folder import RunFolder, data_name
from vitral.runs.selftraining.pseudo_labels import PseudoLabeling

SELFTRAININGS = Path("selftrain")
COLUMNS = ("path", "label", "split", "confidence")


class SelfTrainingPlan(Config):
    """The contents of selftrain.json."""

    format: Literal[1] = 1
    recipe: Recipe  # of the first teacher, complete
    unlabeled: tuple[str, ...] = Field(min_length=1)  # inputs with unlabeled images, absolute
    rounds: int = Field(default=2, ge=1)  # of students
    labeling: PseudoLabeling = PseudoLabeling()
    student: Mapping[str, JsonValue] = Field(default_factory=dict)  # settings of students that differ
    trust: bool = False


class Round(Config):
    """A finished run of a self-training."""

    round: int  # 0 is the teacher that has seen labeled images alone
    run: str  # its folder, in that of the self-training
    labeled: int  # training images
    pseudo_labeled: int
    per_class: dict[str, int]  # pseudo-labeled images
    metrics: dict[str, float]  # of the best weights


class SelfTrainingResult(Config):
    """The contents of results.json."""

    format: int = 1
    rounds: tuple[Round, ...]


class SelfTrainingFolder:
    """The paths of a self-training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "selftrain.json"
        self.results = path / "results.json"

    def run(self, number: int) -> RunFolder:
        """The run of a round."""
        return RunFolder(self.path / f"round-{number}")

    def manifest(self, number: int) -> Path:
        """The images of the run of a round, from 1 on."""
        return self.path / f"round-{number}.csv"

    def read_plan(self) -> SelfTrainingPlan:
        """The plan; ConfigError if this is no self-training."""
        if not self.plan.is_file():
            message = "not a self-training: it has no selftrain.json"
            hint = "give the folder that `vitral selftrain` printed"
            raise ConfigError(message, code="config.not_found", where=self.path, hint=hint)
        return SelfTrainingPlan.from_json(read_file(self.plan))


def create_folder(out: str, plan: SelfTrainingPlan) -> SelfTrainingFolder:
    """Create the folder with its plan, complete or not at all."""
    path = Path(out).expanduser() if out else _free_name(data_name(plan.recipe.data.path))
    if path.exists():
        command = f"vitral selftrain --resume {shlex.quote(str(path))}"
        hint = f"choose another folder, or resume the self-training in it: {command}"
        raise ConfigError("already exists, and is not overwritten", code="config.path_exists", where=path, hint=hint)
    with new_folder(path) as draft:
        write_file_atomically(SelfTrainingFolder(draft).plan, plan.to_json() + "\n")
    return SelfTrainingFolder(path)


def _free_name(name: str) -> Path:
    """`selftrain/photos`, or `selftrain/photos-2` where that exists."""
    paths = (SELFTRAININGS / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in paths if not path.exists())


def write_rows(path: Path, rows: Iterable[tuple[str, str, str, str]]) -> None:
    """Write a manifest atomically."""
    text = StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows((os.path.abspath(file), *rest) for file, *rest in rows)
    write_file_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a manifest that `write_rows` wrote."""
    return list(csv.DictReader(StringIO(read_file(path).decode("utf-8", "surrogateescape"), newline="")))
