"""Checks before a run starts or resumes, and the files that are written before its first step."""

import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.core.storage import Lock, os_error_message, write_file_atomically
from vitral.data.doctor.diagnosis import check_sample
from vitral.data.doctor.report import format_example
from vitral.data.loading.sampler import World
from vitral.data.samples import Samples, write_split
from vitral.recipes.recipe import Patience, Recipe, read_recipe
from vitral.runs.build import build_loader
from vitral.runs.folder import Environment, RunFolder, capture_environment, create_folder
from vitral.runs.request import RunRequest, open_samples


def check_recipe(recipe: Recipe, samples: Samples, world: World) -> None:
    """Refuse a recipe that could not take its first step."""
    plan = build_loader(recipe, samples, "train", world).plan
    recipe.schedule.check(recipe.length.total_steps(plan))
    recipe.finetune.check(recipe.weights, recipe.model, recipe.task)
    if isinstance(recipe.early_stopping, Patience) and not samples.of("val"):
        message, hint = "needs validation images, and there are none", "set early_stopping=none, or provide some"
        raise ConfigError(message, code="config.no_validation_images", where="early_stopping", hint=hint)


def quick_check(samples: Samples) -> list[str]:
    """The warnings of the quick data check; DataError if a file cannot be decoded."""
    findings = check_sample(samples).findings
    for finding in findings:
        if finding.kind == "corrupt":
            message = f"{finding.title}: {format_example(finding.examples[0])}"
            hint = f"{finding.hint}; for all problems: vitral check {shlex.quote(samples.where)}"
            raise DataError(message, code="data.corrupt_image", where=samples.where, hint=hint)
    return [f"{finding.severity}: {finding.title}" for finding in findings if finding.severity != "note"]


def create_run(out: str, recipe: Recipe, samples: Samples, call: Sequence[str]) -> RunFolder:
    """Create the run folder with recipe, environment and split."""
    folder = create_folder(out, samples.where)
    with Lock(folder.path):
        if folder.recipe.exists():
            message, hint = "another process has just started a run in this folder", "choose another folder: --out"
            raise ConfigError(message, code="config.path_exists", where=folder.path, hint=hint)
        text = recipe.to_json() + "\n"
        record = capture_environment(samples.where, samples.fingerprint(), hash_recipe(text), command_line(call))
        write_file_atomically(folder.environment, record.to_json() + "\n")
        write_split(folder.split, samples.rows())
        write_file_atomically(folder.recipe, text)  # last: it makes the folder a run
    return folder


def reopen_run(folder: RunFolder, request: RunRequest = RunRequest()) -> tuple[Recipe, Samples]:  # noqa: B008, immutable
    """The recipe and the images of a run to resume, which must be the same as when it started."""
    recipe_text, record_text = _read(folder.recipe), _read(folder.environment)
    try:
        recipe, record = read_recipe(recipe_text), Environment.from_json(record_text)
    except ConfigError as error:
        hint = "restore the file, or start a new run"
        raise ConfigError(str(error), code=error.code, where=folder.path, hint=hint) from None
    if hash_recipe(recipe_text.decode()) != record.recipe:
        hint = f"restore it, or start a new run: vitral train DATA --weights {shlex.quote(str(folder.path))}"
        raise ConfigError(
            "was changed after the run started", code="config.recipe_changed", where=folder.recipe, hint=hint
        )
    samples = open_samples(recipe, request)
    if samples.fingerprint() != record.fingerprint:
        message = "images, labels or file sizes have changed since the run started"
        hint = f"restore them as listed in {folder.split}, or start a new run"
        raise DataError(message, code="data.changed", where=samples.where, hint=hint)
    return recipe, samples


def hash_recipe(text: str) -> str:
    """The SHA-256 of a recipe."""
    return hashlib.sha256(text.encode()).hexdigest()


def command_line(call: Sequence[str]) -> str:
    """The command line, or the call in Python."""
    if Path(sys.argv[0]).name in ("vitral", "__main__.py"):
        return shlex.join(["vitral", *sys.argv[1:]])
    return f"vitral.train({', '.join(call)})"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message, hint = f"cannot be read: {os_error_message(error)}", "restore it, or start a new run"
        raise VitralError(message, code="file.read_failed", where=path, hint=hint) from None
