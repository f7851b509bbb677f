"""The folder of a sweep: its plan, and its trials, each a run folder with its recipe and its log beside it."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, JsonValue

from vitral.core.config import Config
from vitral.core.errors import ConfigError, VitralError, WeightsError
from vitral.core.files import read_file
from vitral.core.formats import upgrade_sweep_plan
from vitral.core.manifest import MANIFEST, Manifest, file_entries, read_manifest, verify_entries, write_manifest
from vitral.core.storage import file_digest, new_folder, write_file_atomically
from vitral.recipes.recipe import Recipe
from vitral.runs.folder import RunFolder
from vitral.runs.sweeps.search import shorten_recipe

log = logging.getLogger("vitral")
SWEEPS = Path("sweeps")
HAS_MANIFEST = 2  # the format of sweep.json since which a sweep has a manifest
LONGEST_NAME = 100  # letters of the folder of a trial


class Candidate(Config):
    """Settings to try, and the complete recipe that they give."""

    number: int
    settings: dict[str, JsonValue]
    recipe: Recipe

    def label(self) -> str:
        """`lr=0.001 optimizer=muon`."""
        return " ".join(f"{path}={format_value(value)}" for path, value in self.settings.items())


class SweepPlan(Config):
    """The contents of sweep.json: all that is needed to go on after a stop."""

    format: Literal[1, 2] = 2  # since 2, the sweep has a manifest
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    seeds: int = Field(default=1, ge=1)  # trials of each candidate, whose seeds count up from that of the recipe
    halving: int = Field(default=0, ge=0)  # one in so many candidates is kept and trained longer; 0 trains all fully


class Trial(NamedTuple):
    """One training of a candidate, on a rung of successive halving."""

    candidate: Candidate
    seed: int
    rung: int  # from 0
    share: float  # of the steps of the recipe
    folder: RunFolder

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return shorten_recipe(self.candidate.recipe, self.share).model_copy(update={"seed": self.seed})

    @property
    def recipe_file(self) -> Path:
        """Where its recipe is, for `train --recipe`."""
        return self.folder.path.with_name(f"{self.folder.path.name}.json")

    @property
    def log_file(self) -> Path:
        """What it prints."""
        return self.folder.path.with_name(f"{self.folder.path.name}.log")


class SweepFolder:
    """The paths of a sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "sweep.json"
        self.results = path / "results.json"
        self.table = path / "results.csv"
        self.report = path / "report.html"

    def read_plan(self) -> SweepPlan:
        """The plan; an error if this is no sweep, or if the plan was changed."""
        if not self.plan.is_file():
            message, hint = "not a sweep: it has no sweep.json", "give the folder that `vitral sweep` printed"
            raise ConfigError(message, code="config.not_found", where=self.path, hint=hint)
        plan = SweepPlan.from_json(upgrade_sweep_plan(read_file(self.plan), Recipe().format))
        self._check_plan(plan)
        return plan

    def _check_plan(self, plan: SweepPlan) -> None:
        hint = "restore it, or start a new sweep"
        if not os.path.lexists(self.path / MANIFEST):
            if plan.format < HAS_MANIFEST:
                log.info(f"unverified: {self.path} is of an earlier format without a hash of its plan")
                return
            raise VitralError("is missing", code="run.record_changed", where=self.path / MANIFEST, hint=hint)
        try:
            manifest = read_manifest(self.path)
            if manifest.kind != "sweep" or manifest.names != [self.plan.name]:
                raise WeightsError(
                    f"does not list {self.plan.name}", code="weights.corrupt", where=self.path / MANIFEST
                )
            verify_entries(self.path, manifest.files, hint)
        except WeightsError as error:
            message = f"was changed after the sweep started ({error.message})"
            raise VitralError(message, code="run.record_changed", where=error.where, hint=hint) from None

    def trials(self, plan: SweepPlan, candidates: Sequence[Candidate], rung: int, share: float) -> list[Trial]:
        """The trials of a rung: all candidates with the first seed, then with the next."""
        home = self.path / (f"rung-{rung + 1}" if plan.halving else "trials")
        return [
            Trial(each, seed, rung, share, RunFolder(home / trial_name(each, seed)))
            for offset in range(plan.seeds)
            for each in candidates
            for seed in [each.recipe.seed + offset]
        ]


def create_sweep(out: Path, plan: SweepPlan) -> SweepFolder:
    """Create the folder of a sweep, complete or not at all."""
    if out.exists():
        hint = f"choose another folder, or resume the sweep in it: vitral sweep --resume {out}"
        raise ConfigError("already exists, and is not overwritten", code="config.path_exists", where=out, hint=hint)
    with new_folder(out) as draft:
        path, text = SweepFolder(draft).plan, plan.to_json() + "\n"
        write_file_atomically(path, text)
        write_manifest(draft, Manifest(kind="sweep", files=file_entries({path.name: file_digest(text.encode())})))
    return SweepFolder(out)


def free_name(name: str) -> Path:
    """`sweeps/photos`, or `sweeps/photos-2` where that exists."""
    number, path = 1, SWEEPS / name
    while path.exists():
        number += 1
        path = SWEEPS / f"{name}-{number}"
    return path


def trial_name(candidate: Candidate, seed: int) -> str:
    """A name for a folder: the number makes it unique, the settings make it readable."""
    label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", candidate.label())
    return f"{candidate.number:03}-{label}"[:LONGEST_NAME] + f"-seed={seed}"


def format_value(value: Any) -> str:
    """A value of a setting as it is typed: `0.001`, `muon`."""
    return value if isinstance(value, str) else str(value).replace(" ", "")
