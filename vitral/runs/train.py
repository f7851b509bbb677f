"""`train`, `resume` and the `Run` they return: from the request to the artifacts, step by step."""

import logging
import shlex
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from vitral.core.errors import ConfigError
from vitral.core.storage import Lock
from vitral.data.samples import Samples
from vitral.html.text import percent
from vitral.recipes.recipe import Recipe
from vitral.runs.artifacts import RunArtifacts
from vitral.runs.autotune import fit_memory, fit_time
from vitral.runs.build import build_run_for_task, build_task, build_train_images, select_device
from vitral.runs.folder import RunFolder, find_run, refuse_existing
from vitral.runs.messages import format_commands, next_commands, suggest_weights
from vitral.runs.preflight import check_recipe, create_run, quick_check, reopen_run
from vitral.runs.report.report import ReportEvaluation
from vitral.runs.request import RunRequest, resolve
from vitral.runs.session import Session
from vitral.tasks.task import Task
from vitral.training.budget import parse_seconds
from vitral.training.callbacks import SignalHandler, StopTraining
from vitral.training.distributed.process_group import ProcessGroup, open_process_group
from vitral.training.metrics import read_metrics
from vitral.training.precision import probe_hardware
from vitral.training.progress import Progress, ProgressSpan, create_display
from vitral.weights.adapt import load_pretrained
from vitral.weights.load import open_model

log = logging.getLogger("vitral")
STOP_MESSAGE = "saving after this step; interrupt again to stop at once\n"


class Run(NamedTuple):
    """A run: its folder, recipe and data, the steps it took, and the evaluation of its best weights."""

    folder: RunFolder
    recipe: Recipe
    samples: Samples
    step: int
    steps: int
    signal: int  # number of the signal that stopped it, 0 for none
    evaluation: ReportEvaluation | None

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}: step {self.step:,} of {self.steps:,}{self._format_accuracy(', ')})"

    def summary(self) -> list[str]:
        """The lines that are logged at the end: accuracy, report, next commands."""
        if self.signal:
            stopped = f"stopped and saved after step {self.step:,} of {self.steps:,}; resume with:"
            return [f"{signal.Signals(self.signal).name}: {stopped}", self.resume_command]
        commands = format_commands(next_commands(self.folder, self.recipe, self.samples))
        return [*filter(None, [self._format_accuracy()]), f"report: {self.folder.report}", "next:", *commands]

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return f"vitral train --resume {shlex.quote(str(self.folder.path))}"

    def _format_accuracy(self, prefix: str = "") -> str:
        if self.evaluation is None:
            return ""
        found, split = self.evaluation.accuracy, self.evaluation.split
        interval = f"95% CI {percent(found.ci95.low)} to {percent(found.ci95.high)}"
        return f"{prefix}accuracy {percent(found.top1)} on {found.images:,} {split} images ({interval})"


def train(
    data: str,
    *settings: str,
    recipe: str = "",
    model: str = "",
    root: str = "",
    out: str = "",
    time_limit: str = "",
) -> Run:
    """Train on images and write a run folder: `vitral.train("photos", "epochs=20", model="S/16")`.

    Settings are paths in the recipe, such as `optimizer.lr=1e-3`, or the short names `epochs`, `steps`, `image_size`,
    `lr` and `from`. Without a recipe, one is chosen by the data.
    """
    started = time.monotonic()
    refuse_existing(out)
    limit = _parse_limit(time_limit, settings)
    complete, samples, reason, source = resolve(RunRequest(data, settings, recipe, model, root))
    named = {"recipe": recipe, "model": model, "root": root, "out": out, "time_limit": time_limit}
    call = [*map(repr, (data, *settings)), *(f"{name}={value!r}" for name, value in named.items() if value)]
    with open_process_group(select_device(complete)) as group:
        check_recipe(complete, samples, group.world)
        messages = [reason, *samples.notes, *quick_check(samples), suggest_weights(complete, samples)]
        if source and group.is_main:  # a mismatch of the weights is found before a folder is made
            messages += [*source.messages, *load_pretrained(complete.model.build(), source.loaded)]
        _log(group, messages)
        complete = fit_memory(complete, samples, group)
        if limit:
            complete = fit_time(complete, samples, group, limit, started)
        path = group.run_on_main(lambda: str(create_run(out, complete, samples, call).path))
        task = build_task(complete, samples, group.device, source.loaded if source else None)
        del source  # training needs the memory
        return run_session(find_run(str(path)), complete, samples, group, task, prepare=True)


def resume(where: str) -> Run:
    """Continue a run that was stopped or killed; it ends in the same bits as if it had never stopped."""
    folder = find_run(where)
    recipe, samples = reopen_run(folder)
    with open_process_group(select_device(recipe)) as group:
        started = bool(group.run_on_main(lambda: bool(read_metrics(folder.path))))
        # A run that has started has checkpoints; the weights that it started from may be gone.
        source = open_model(recipe.weights).loaded if recipe.weights and not started else None
        task = build_task(recipe, samples, group.device, source)
        del source
        return run_session(folder, recipe, samples, group, task, prepare=not started)


def run_session(
    folder: RunFolder, recipe: Recipe, samples: Samples, group: ProcessGroup, task: Task, prepare: bool
) -> Run:
    """Train a task for the remaining steps, and write the artifacts; `prepare` it before its first step."""
    _log(group, [recipe.precision.decide(probe_hardware(group.device)).message])
    with ExitStack() as stack:
        if group.is_main:
            stack.enter_context(Lock(folder.path))
        if prepare:
            _log(group, [recipe.finetune.prepare(task, build_train_images(recipe, samples, group))])
        parts = build_run_for_task(task, recipe, samples, group)
        artifacts = RunArtifacts(folder, parts, group)
        display = create_display(quiet=not group.is_main or log.level > logging.INFO)
        stop = stack.enter_context(SignalHandler(f"{display.erase_line}{STOP_MESSAGE}" if group.is_main else ""))
        session = Session(folder, parts, group, stop, artifacts)
        stack.callback(session.close)
        session.restore()
        group.set_resume_hint(Run(folder, recipe, samples, session.step, parts.steps, 0, None).resume_command)
        _log(group, session.describe())
        span = ProgressSpan(session.step, parts.steps, parts.plan.steps_per_epoch, parts.plan.batch_size)
        with Progress(span, display) as progress:
            try:
                session.run(progress)
            except StopTraining as stopped:
                if stopped.signal:
                    artifacts.write_report(stopped.step, "stopped", session.best.step, None)
                    return Run(folder, recipe, samples, stopped.step, parts.steps, stopped.signal, None)
        return finish_run(session, artifacts)


def finish_run(session: Session, artifacts: RunArtifacts) -> Run:
    """Write the bundles, evaluate the best weights, and write their card and the report."""
    folder, group, step, best = artifacts.folder, artifacts.group, session.step, session.best.step
    lines = {line.step: line for line in session.evaluations}
    artifacts.write_bundle(folder.last, step, lines.get(step))
    if best == step:
        artifacts.write_bundle(folder.best, step, lines.get(step))
    else:
        artifacts.write_saved_bundle(folder.best, best, lines.get(best))
    group.barrier()
    evaluation = artifacts.evaluate(folder.best)
    if evaluation is not None:
        artifacts.update_card(folder.best, best, evaluation)
    artifacts.write_report(step, "done", best, evaluation)
    group.barrier()
    return Run(folder, artifacts.parts.recipe, artifacts.parts.samples, step, artifacts.parts.steps, 0, evaluation)


def _parse_limit(time_limit: str, settings: Sequence[str]) -> float:
    """The time limit in seconds, 0 for none."""
    if not time_limit:
        return 0.0
    if lengths := [setting for setting in settings if setting.startswith(("epochs=", "steps=", "length"))]:
        message = f"cannot be combined with {lengths[0]}: both set the length of training"
        raise ConfigError(message, code="config.conflict", where="time-limit", hint="remove one of them")
    return parse_seconds(time_limit)


def _log(group: ProcessGroup, messages: Sequence[str]) -> None:
    """Log messages once, in the main process."""
    for message in filter(None, messages if group.is_main else ()):
        log.info(message)
