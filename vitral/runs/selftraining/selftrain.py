"""`selftrain`: Noisy Student (arXiv 1911.04252) as a sequence of ordinary runs.

A teacher is trained on labeled images. It labels unlabeled ones; those it is confident of are training images of a
student beside the labeled ones. The student is the next teacher. Students see augmented images, the teacher labels
plain ones. Every run resumes to the same bits, and a manifest is complete or not there, so the whole does too.
"""

import csv
import logging
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from vitral.core.config import override, to_plain
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError
from vitral.core.files import allow_outside, read_file
from vitral.core.manifest import own_files
from vitral.core.storage import Lock, write_file_atomically
from vitral.data.datasets.files import FileStore
from vitral.data.samples import Samples
from vitral.evaluation.subject import Progress, no_progress
from vitral.html.page import plural
from vitral.html.text import align_columns
from vitral.inference.predictor import Predictor
from vitral.models.registry import ModelLike
from vitral.recipes.recipe import DataConfig, Recipe, read_recipe
from vitral.runs.callbacks.events import EventDispatcher
from vitral.runs.folder import RunFolder, is_finished, is_run
from vitral.runs.options import TrainOptions
from vitral.runs.request import RunRequest, open_samples, request_from_options, resolve
from vitral.runs.selftraining.folder import (
    Round,
    SelfTrainingFolder,
    SelfTrainingPlan,
    SelfTrainingResult,
    create_folder,
    read_rows,
    write_rows,
)
from vitral.runs.selftraining.pseudo_labels import PseudoLabeling, choose, predict_labels, without_labeled
from vitral.runs.similarity.collection import ENGINE, file_paths, list_inputs
from vitral.runs.train import Run, resume, train_request
from vitral.training.callbacks import find_best
from vitral.training.metrics import TRAIN, read_metrics
from vitral.training.progress import format_metric

log = logging.getLogger("vitral")


@dataclass(frozen=True)
class SelfTraining:
    """A self-training: its folder, its finished rounds, and the signal that stopped it, 0 for none."""

    folder: SelfTrainingFolder
    rounds: tuple[Round, ...]
    signal: int = 0

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @property
    def student(self) -> Path:
        """The run of the last finished round."""
        return self.folder.run(len(self.rounds) - 1).path

    def __str__(self) -> str:
        head = ("round", "labeled", "pseudo-labeled", "best weights", "run")
        rows = [
            (
                f"{each.round}",
                f"{each.labeled:,}",
                f"{each.pseudo_labeled:,}",
                ", ".join(format_metric(*metric) for metric in sorted(each.metrics.items())),
                each.run,
            )
            for each in self.rounds
        ]
        return "\n".join(align_columns([head, *rows], right=(0, 1, 2)))

    def summary(self) -> list[str]:
        """The lines that are logged at the end."""
        if self.signal:
            done = f"stopped and saved with {plural(len(self.rounds), 'round')} done; resume with:"
            return [done, f"vitral selftrain --resume {shlex.quote(str(self.path))}"]
        return [f"report of the last student: {self.folder.run(len(self.rounds) - 1).report}"]


def selftrain(
    data: str | Path,
    unlabeled: str | Path | Iterable[str | Path],
    *,
    rounds: int = 2,
    labeling: PseudoLabeling = PseudoLabeling(),  # noqa: B008, a frozen value
    student: Mapping[str, Any] | None = None,
    recipe: str | Path | Recipe = "",
    model: ModelLike = "",
    out: str | Path = "",
    **options: Unpack[TrainOptions],
) -> SelfTraining:
    """Train with labeled and unlabeled images: `vitral.selftrain("photos/", "pile/", rounds=2)`.

    The other arguments are those of `vitral.train`; `student` has settings of students that differ from the teacher's,
    such as `{"drop_path_rate": 0.1}`. Labeled images are a folder or a manifest of files.
    """
    with trusted(options.get("trust", False)):
        request = request_from_options(data, None, recipe, model, options)
        inputs = [unlabeled] if isinstance(unlabeled, str | Path) else list(unlabeled)
        plan = plan_selftraining(request, list(map(str, inputs)), rounds, labeling, student or {})
        return run_selftraining(create_folder(str(out), plan))


def plan_selftraining(
    request: RunRequest, unlabeled: list[str], rounds: int, labeling: PseudoLabeling, student: Mapping[str, Any]
) -> SelfTrainingPlan:
    """The plan of a self-training; what does not fit is found here, before any training."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        message, hint = "runs in one process", "start it without torchrun"
        raise ConfigError(message, code="config.unsupported", where="selftrain", hint=hint)
    recipe, samples, _, _ = resolve(request)
    if not recipe.task.labeled:
        message, hint = f"the task {recipe.task.kind} has no classes to label with", "leave --task out"
        raise ConfigError(message, code="config.unsupported", where="task", hint=hint)
    check_files(samples)
    file_paths(list_inputs(unlabeled))
    override(recipe, student)  # settings that do not exist are found now
    return SelfTrainingPlan(
        recipe=recipe,
        unlabeled=tuple(os.path.abspath(os.path.expanduser(each)) for each in unlabeled),
        rounds=rounds,
        labeling=labeling,
        student=to_plain(dict(student)),
    )


def check_files(samples: Samples) -> None:
    """Raise ConfigError for labeled images that are not files of their own, which a manifest could not name."""
    if not isinstance(samples.store, FileStore):
        message, hint = f"the images of {samples.where} are not files", "give a folder or a manifest of image files"
        raise ConfigError(message, code="config.unsupported", where="DATA", hint=hint)


def resume_selftraining(where: str | Path, progress: Progress = no_progress) -> SelfTraining:
    """Go on with a self-training that was stopped or killed; it ends in the same bits as without the stop."""
    return run_selftraining(SelfTrainingFolder(Path(where).expanduser()), progress)


def run_selftraining(folder: SelfTrainingFolder, progress: Progress = no_progress) -> SelfTraining:
    """Do what is left of a self-training."""
    plan = folder.read_plan()
    done: list[Round] = []
    with Lock(folder.path), allow_outside():  # manifests of this folder name images elsewhere
        for number in range(plan.rounds + 1):
            run = _train_round(folder, plan, number, progress)
            if run is not None and run.signal:
                return SelfTraining(folder, tuple(done), run.signal)
            done.append(_result(folder, number))
            write_file_atomically(folder.results, SelfTrainingResult(rounds=tuple(done)).to_json() + "\n")
    return SelfTraining(folder, tuple(done))


def _train_round(folder: SelfTrainingFolder, plan: SelfTrainingPlan, number: int, progress: Progress) -> Run | None:
    """Start or resume the run of a round; None if it is finished."""
    path = str(folder.run(number).path)
    if is_finished(path):
        return None
    log.info(f"round {number} of {plan.rounds}: {'a student' if number else 'the teacher, on labeled images'}")
    if is_run(path):
        return resume(path)
    if not number:
        return train_request(RunRequest(recipe=plan.recipe), path, "", EventDispatcher())
    if not folder.manifest(number).is_file():
        _label(folder, plan, number, progress)
    # Students use what was measured for the teacher's run: threads, microbatches, stages.
    first = read_recipe(read_file(folder.run(0).recipe))
    data = DataConfig(**{name: getattr(first.data, name) for name in ("order", "cache_bytes")})
    recipe = first.model_copy(update={"data": data.model_copy(update={"path": str(folder.manifest(number).resolve())})})
    return train_request(RunRequest(recipe=override(recipe, plan.student)), path, "", EventDispatcher())


def _label(folder: SelfTrainingFolder, plan: SelfTrainingPlan, number: int, progress: Progress) -> None:
    """Write the manifest of a round: the labeled images as they were split, and those that the teacher labels."""
    samples = open_samples(plan.recipe)
    images = without_labeled(list_inputs(plan.unlabeled), samples)
    with own_files():
        teacher = Predictor(folder.run(number - 1).best, engine=ENGINE)
    labels = predict_labels(teacher, images, plan.labeling.skip_bad, progress)
    chosen = choose(labels, plan.labeling, len(samples.classes))
    rows = [(samples.store.address(row.name), row.label, str(row.split), "") for row in samples.rows()]
    paths = file_paths([each.image for each in chosen])
    rows += [(file, each.label, "train", f"{each.confidence:.6f}") for file, each in zip(paths, chosen, strict=True)]
    write_rows(folder.manifest(number), rows)
    counts = Counter(each.label for each in chosen)
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(10))
    log.info(f"{plural(len(chosen), 'pseudo-label')} of {plural(len(images), 'unlabeled image')}: {shown}")


def _result(folder: SelfTrainingFolder, number: int) -> Round:
    run = folder.run(number)
    labels = [row["label"] for row in read_rows(folder.manifest(number)) if row["confidence"]] if number else []
    with run.split.open(newline="") as file:
        training = sum(row["split"] == "train" for row in csv.DictReader(file))
    return Round(
        round=number,
        run=run.path.name,
        labeled=training - len(labels),
        pseudo_labeled=len(labels),
        per_class=dict(sorted(Counter(labels).items())),
        metrics=_metrics(run),
    )


def _metrics(run: RunFolder) -> dict[str, float]:
    """The metrics of the best weights of a run on the validation images, or of the last ones on the test images."""
    lines = [line for line in read_metrics(run.path) if line.split != TRAIN]
    split = "val" if any(line.split == "val" for line in lines) else "test"
    best_by = read_recipe(read_file(run.recipe)).task.best_by if split == "val" else "last"
    best = find_best(lines, split, best_by).step
    return next((dict(line.values) for line in lines if line.split == split and line.step == best), {})
