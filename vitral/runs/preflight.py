"""`check`, the checks of every run before it starts or resumes, and the files written before its first step."""

import hashlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.utils.data import Dataset

from vitral.core.config import to_plain
from vitral.core.custom import is_trusted, trusted
from vitral.core.errors import ConfigError, DataError, VitralError, WeightsError
from vitral.core.files import read_file
from vitral.core.machine import cpu_count
from vitral.core.manifest import Manifest, file_entries, hash_files, read_manifest, verify_entries
from vitral.core.storage import FileDigest, Lock, file_digest, os_error_message, write_file_atomically
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.source import SAMPLE, verify_data
from vitral.data.decoding.isolation import Isolation
from vitral.data.doctor.checks import ModelInput
from vitral.data.doctor.diagnosis import Diagnosis, TrainingForecast, diagnose_all, diagnose_sample
from vitral.data.doctor.report import format_example
from vitral.data.loading.sampler import SINGLE_PROCESS, World
from vitral.data.samples import Samples, write_split
from vitral.data.transforms.crop import Resize
from vitral.models.registry import ModelLike
from vitral.recipes.recipe import Patience, PlannedSteps, Recipe, TimeLimit, read_recipe
from vitral.runs.build import build_loader
from vitral.runs.folder import (
    HAS_MANIFEST,
    Environment,
    RunFolder,
    capture_environment,
    create_folder,
    remove_setup_files,
)
from vitral.runs.messages import data_arguments, describe_model
from vitral.runs.options import TrainOptions
from vitral.runs.request import OBJECT, RunRequest, data_recipe, open_samples, request_from_options, resolve
from vitral.training.time_limit import PlanChange

log = logging.getLogger("vitral")
UNLABELED_TASK = "masked_patches"
OPTIONS = ("image_size", "max_pixels", "root", "task", "weights")  # settings with a command-line option of their own


def check(
    data: str | Path | Dataset[Any] = "",
    *,
    val: Dataset[Any] | None = None,
    recipe: str | Path | Recipe = "",
    model: ModelLike = "",
    isolation: Isolation | None = None,
    **options: Unpack[TrainOptions],
) -> Diagnosis:
    """Check every image of a dataset, and describe the training on it: `vitral.check("photos/", model="S/16")`.

    The arguments are those of `vitral.train`. Structural faults, which stop a training, are findings here. A folder of
    images without labels is checked for a training without labels. `workers` is the number of processes that read
    files, by default one per core. With an `Isolation` files are decoded in child processes with limits on memory and
    time, instead of workers.
    """
    workers = options.pop("workers", "auto")
    with trusted(options.get("trust", False)):
        request = request_from_options(data, val, recipe, model, options)
        return check_request(request, cpu_count() if workers == "auto" else workers, isolation)


def check_request(request: RunRequest, workers: int, isolation: Isolation | None = None) -> Diagnosis:
    """The diagnosis of the data of a request, with the training that the request would run."""
    faults: list[DataError] = []
    samples = open_samples(data_recipe(request), request, faults.append)
    if not samples.items and faults and all(fault.code == "data.no_labels" for fault in faults):
        request = request._replace(settings={**request.settings, "task": UNLABELED_TASK})
        faults.clear()
        samples = open_samples(data_recipe(request), request, faults.append)
    if isinstance(request.data, str | Path) and str(request.data):
        verify_data(str(request.data), faults.append)
    forecast = forecast_training(request, samples, bool(faults))
    if isinstance(request.data, str | Path) and str(request.data):  # show the path as the user wrote it
        faults = [_with_path(fault, samples.where, str(request.data)) for fault in faults]
        samples = replace(samples, where=str(request.data))
    arguments = _arguments(request, samples.where)
    return diagnose_all(samples, workers, faults, forecast, arguments, data_recipe(request).decoding(), isolation)


def forecast_training(request: RunRequest, samples: Samples, has_faults: bool = False) -> TrainingForecast | None:
    """The training of a request on its open data.

    None without training images, if faults make it impossible, or if a time limit decides its length.
    """
    if not samples.of("train"):
        return None
    try:
        recipe, _, reason, _ = resolve(request, samples)
        check_recipe(recipe, samples, SINGLE_PROCESS)
    except ConfigError:
        if has_faults:
            return None
        raise
    if isinstance(recipe.length, TimeLimit):  # its steps are not known before they are timed
        return None
    plan = build_loader(recipe, samples, "train", SINGLE_PROCESS).plan
    steps, model = recipe.length.total_steps(plan), recipe.model
    return TrainingForecast(
        recipe=recipe.name,
        reason=reason,
        task=recipe.task.kind,
        weights=recipe.weights,
        model=describe_model(model),
        parameters=sum(weight.numel() for weight in model.build_empty().parameters()),
        image_size=model.image_size,
        patch=model.token_size(),
        patches=model.layout(model.image_size).grid.cells(),
        squeezes=isinstance(recipe.images.eval_crop, Resize),
        epochs=steps / plan.steps_per_epoch,
        steps=steps,
        batch_size=recipe.batch_size,
    )


def _with_path(fault: DataError, opened: str, given: str) -> DataError:
    """The fault with the path of the data as the user wrote it."""
    where, hint = (text.replace(opened, given.rstrip("/") or given) for text in (fault.where, fault.hint))
    return DataError(fault.message, code=fault.code, where=where, hint=hint)


def _arguments(request: RunRequest, data: str) -> str:
    """The request as arguments of `vitral train` and `vitral check`, quoted for a shell; empty if it has objects."""
    if not all(isinstance(each, str | Path) for each in (request.data, request.recipe, request.model)):
        return ""
    words = [f"./{data}" if data.startswith("-") else data]
    for name, value in (("recipe", str(request.recipe)), ("model", str(request.model))):
        words += [f"--{name}", value] if value else []
    for path, given in request.settings.items():
        plain = to_plain(given)
        text = plain if isinstance(plain, str) else json.dumps(plain)
        words += [f"--{path.replace('_', '-')}", text] if path in OPTIONS else ["--set", f"{path}={text}"]
    return shlex.join([*words, *(["--trust"] if is_trusted() else [])])


def check_recipe(recipe: Recipe, samples: Samples, world: World) -> None:
    """Refuse a recipe that could not take its first step."""
    plan = build_loader(recipe, samples, "train", world).plan
    if not isinstance(recipe.length, TimeLimit | PlannedSteps):  # which are planned on the way
        recipe.schedule.check(recipe.length.total_steps(plan))
    recipe.finetune.check(recipe.weights, recipe.model, recipe.task)
    _check_sizes(recipe)
    if isinstance(recipe.early_stopping, Patience) and not samples.of("val"):
        message, hint = "needs validation images, but there are none", "set early_stopping=none, or provide some"
        raise ConfigError(message, code="config.no_validation_images", where="early_stopping", hint=hint)


def _check_sizes(recipe: Recipe) -> None:
    """Refuse image sizes of a later or earlier part of the run that the model cannot take."""
    model = recipe.model
    for stage in recipe.images.size.stages(model.image_size, model.token_size(), steps=1)[:-1]:
        try:
            model.build_empty()(torch.empty(2, model.channels, *stage.image_size, device="meta"))
        except ConfigError as error:
            message = f"the run has images of {stage.image_size}, which the model does not take: {error.message}"
            raise ConfigError(message, code=error.code, where="images.size", hint="set images.size=fixed") from None


def quick_check(samples: Samples, recipe: Recipe) -> list[str]:
    """The warnings of the quick data check; DataError if a file cannot be decoded."""
    takes = ModelInput(recipe.model.image_size, recipe.model.token_size())
    findings = diagnose_sample(samples, takes, recipe.decoding()).findings
    for finding in findings:
        if finding.kind == "corrupt":
            message = f"{finding.title}: {format_example(finding.examples[0])}"
            hint = f"{finding.hint}; to list all problems: vitral check {data_arguments(recipe)}"
            raise DataError(message, code="data.corrupt_image", where=samples.where, hint=hint)
    return [f"{finding.severity}: {finding.title}" for finding in findings if finding.severity != "note"]


def create_run(out: str, recipe: Recipe, samples: Samples, call: Sequence[str]) -> RunFolder:
    """Create the run folder with recipe, environment and split."""
    is_object = recipe.data.path.startswith(OBJECT)
    folder = create_folder(out, recipe.data.path.removeprefix(OBJECT) if is_object else samples.where)
    with Lock(folder.path):
        if folder.recipe.exists():
            message, hint = "another process has just started a run in this folder", "choose another folder: --out"
            raise ConfigError(message, code="config.path_exists", where=folder.path, hint=hint)
        remove_setup_files(folder)
        text = recipe.to_json() + "\n"
        record = capture_environment(samples.where, samples.fingerprint(), hash_recipe(text), command_line(call))
        write_file_atomically(folder.environment, record.to_json() + "\n")
        write_split(folder.split, samples.rows())
        written = (folder.environment, folder.split)
        digests = {path.name: FileDigest(path.stat().st_size, hash_files([path])) for path in written}
        digests[folder.recipe.name] = file_digest(text.encode())
        write_file_atomically(folder.manifest, Manifest(kind="run", files=file_entries(digests)).to_json())
        write_file_atomically(folder.recipe, text)  # last: it makes the folder a run
    return folder


def check_record(folder: RunFolder, record: Environment) -> None:
    """Refuse a run whose recipe, environment or split is not what it was when the run started."""
    hint = "restore it, or start a new run"
    if not os.path.lexists(folder.manifest):
        if record.format < HAS_MANIFEST:
            log.info(f"unverified: {folder.path} is of an earlier format without hashes of its recipe and split")
            return
        raise VitralError("is missing", code="run.record_changed", where=folder.manifest, hint=hint)
    try:
        manifest = read_manifest(folder.path)
        listed = {entry.name: entry for entry in manifest.files}
        for path in (folder.recipe, folder.environment, folder.split):
            if manifest.kind != "run" or path.name not in listed:
                message = f"does not list {path.name}"
                raise VitralError(message, code="run.record_changed", where=folder.manifest, hint=hint)
            verify_entries(folder.path, [listed[path.name]], hint)
    except WeightsError as error:
        message = f"was changed after the run started ({error.message})"
        raise VitralError(message, code="run.record_changed", where=error.where, hint=hint) from None


def reopen_run(folder: RunFolder, request: RunRequest = RunRequest()) -> tuple[Recipe, Samples]:  # noqa: B008, immutable
    """The recipe and the images of a run to resume, which must be the same as when it started."""
    recipe_text, record_text = _read(folder.recipe), _read(folder.environment)
    try:
        recipe, record = read_recipe(recipe_text), Environment.from_json(record_text)
    except ConfigError as error:
        if all(each.code == "config.untrusted" for each in error.problems):  # the file is as it was
            raise
        hint = "restore the file, or start a new run"
        raise ConfigError(str(error), code=error.code, where=folder.path, hint=hint) from None
    if hash_recipe(recipe_text.decode()) != record.recipe:
        hint = f"restore it, or start a new run: vitral train DATA --weights {shlex.quote(str(folder.path))}"
        raise ConfigError(
            "was changed after the run started", code="config.recipe_changed", where=folder.recipe, hint=hint
        )
    check_record(folder, record)
    recipe = with_moved_data(recipe, request)
    samples = open_samples(recipe, request)
    if samples.fingerprint() != record.fingerprint:
        message = "images, labels or file sizes have changed since the run started"
        hint = f"restore them as listed in {folder.split}, or start a new run"
        raise DataError(message, code="data.changed", where=samples.where, hint=hint)
    return recipe, samples


def with_moved_data(recipe: Recipe, request: RunRequest) -> Recipe:
    """The recipe with the new path of its data, if one is given: that of the files of a dataset known by name."""
    if not isinstance(request.data, str | Path) or not str(request.data):
        return recipe
    path = os.path.abspath(Path(request.data).expanduser())
    moved = {"root" if recipe.data.path in {*NAMED_DATASETS, SAMPLE} else "path": path}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=moved)})


def write_replay(folder: RunFolder, recipe: Recipe, changes: Sequence[PlanChange]) -> None:
    """For a run with a time limit: write the recipe that takes the same steps again, however fast the machine is."""
    if isinstance(recipe.length, TimeLimit):
        repeated = recipe.model_copy(update={"length": PlannedSteps(changes=tuple(changes))})
        write_file_atomically(folder.replay, repeated.to_json() + "\n")


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
        return read_file(path)
    except OSError as error:
        message, hint = f"cannot be read: {os_error_message(error)}", "restore it, or start a new run"
        raise VitralError(message, code="file.read_failed", where=path, hint=hint) from None
