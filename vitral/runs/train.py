"""`train`, `resume` and the `Run` they return: from the request to the artifacts, step by step."""

import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, Unpack

from torch.utils.data import Dataset

from vitral.core.custom import trusted
from vitral.core.errors import ConfigError
from vitral.core.manifest import own_files, refuse_unsigned
from vitral.core.storage import Lock
from vitral.data.samples import Samples
from vitral.html.text import percent
from vitral.models.base import Model
from vitral.models.registry import ModelLike
from vitral.recipes.recipe import Recipe, TimeLimit
from vitral.runs.artifacts import NOT_IMPROVED, RunArtifacts, stage_outcomes
from vitral.runs.autotune import estimate_costs, fit_memory, fix_threads, plan_stages
from vitral.runs.build import (
    build_cached_stage,
    build_run_for_task,
    build_task,
    build_train_images,
    continue_training,
    fit_task,
    select_device,
)
from vitral.runs.callbacks.events import EventDispatcher, Finished, RunCallback, TrackerLike
from vitral.runs.callbacks.trackers import open_trackers, read_ids
from vitral.runs.folder import RunFolder, find_run, mark_finished, refuse_existing
from vitral.runs.messages import (
    format_commands,
    next_commands,
    resume_command,
    run_card,
    suggest_weights,
    warn_few_steps,
)
from vitral.runs.options import TrainOptions
from vitral.runs.preflight import check_recipe, create_run, quick_check, reopen_run, write_replay
from vitral.runs.report.report import ReportEvaluation
from vitral.runs.request import RunRequest, request_from_options, resolve
from vitral.runs.session import Session
from vitral.tasks.task import Task
from vitral.training.callbacks import SignalHandler, StopTraining, find_best
from vitral.training.checkpoints.checkpoint import latest_step
from vitral.training.distributed.process_group import ProcessGroup, open_process_group, read_world
from vitral.training.metrics import has_metrics, read_metrics
from vitral.training.precision import probe_hardware
from vitral.training.progress import (
    Display,
    Progress,
    ProgressSpan,
    SetupProgress,
    TimedSpan,
    create_display,
    format_metric,
)
from vitral.training.time_limit import check_limit, parse_seconds, read_plan
from vitral.weights.adapt import load_pretrained
from vitral.weights.load import load, open_model

log = logging.getLogger("vitral")
STOP_MESSAGE = "saving after this step; interrupt again to stop at once\n"


@dataclass(frozen=True)
class Run:
    """A run: its folder, recipe and data, the steps it took, and the evaluation of its best weights."""

    folder: RunFolder
    recipe: Recipe
    samples: Samples
    step: int
    steps: int
    signal: int  # number of the signal that stopped it, 0 for none
    evaluation: ReportEvaluation | None

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder.report

    @cached_property
    def model(self) -> Model:
        """The model with the best weights, in evaluation mode."""
        with own_files():
            return load(self.folder.best).model

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the best weights on the validation images (or test images), such as `accuracy`."""
        lines = [line for line in read_metrics(self.folder.path) if line.split != "train"]
        split = "val" if any(line.split == "val" for line in lines) else "test"
        best = find_best(lines, "val", self.recipe.task.best_by).step if split == "val" else self.step
        found = next((dict(line.values) for line in lines if line.split == split and line.step == best), {})
        return found | ({"accuracy": self.evaluation.accuracy.top1} if self.evaluation else {})

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}: step {self.step:,} of {self.steps:,}{self._format_accuracy(', ')})"

    def _repr_html_(self) -> str:
        """Accuracy, main facts and training curves, for a notebook."""
        status = f"{signal.Signals(self.signal).name}: resume with {self.resume_command}" if self.signal else "done"
        headline = self._format_accuracy() or ", ".join(format_metric(*metric) for metric in self.metrics.items())
        where = f"step {self.step:,} of {self.steps:,}, {status}"
        return run_card(self.folder, self.recipe, self.samples, [headline, where])

    def summary(self) -> list[str]:
        """The lines that are logged at the end: accuracy, report, next commands."""
        if self.signal:
            stopped = f"stopped and saved after step {self.step:,} of {self.steps:,}; resume with:"
            return [f"{signal.Signals(self.signal).name}: {stopped}", self.resume_command]
        commands = format_commands(next_commands(self.folder, self.recipe, self.samples))
        return [*filter(None, [self._format_accuracy()]), f"report: {self.folder.report}", "next:", *commands]

    @property
    def resume_command(self) -> str:
        """The command that resumes the run, with its trackers."""
        return resume_command(self.folder, self.recipe, list(read_ids(self.folder.path)))

    def _format_accuracy(self, prefix: str = "") -> str:
        if self.evaluation is None:
            return ""
        found, split = self.evaluation.accuracy, self.evaluation.split
        interval = f"95% CI {percent(found.ci95.low)} to {percent(found.ci95.high)}"
        return f"{prefix}accuracy {percent(found.top1)} on {found.images:,} {split} images ({interval})"


def train(
    data: str | Path | Dataset[Any] = "",
    *,
    val: Dataset[Any] | None = None,
    recipe: str | Path | Recipe = "",
    model: ModelLike = "",
    out: str | Path = "",
    **options: Unpack[TrainOptions],
) -> Run:
    """Train on images and write a run folder: `vitral.train("photos/", model="S/16", epochs=50, lr=3e-4)`.

    `data` is a folder, a manifest, a named dataset, or any torch Dataset of (image, label) with `val` beside it. The
    recipe is an object, a name, or a JSON or YAML file; without one it is chosen by the data. Options override its
    fields; `settings` takes any field by its path, such as `{"optimizer.betas": (0.9, 0.95)}`. Each of `callbacks` is
    called with every `RunEvent`; `tracker` is `tensorboard`, `wandb`, `mlflow`, an object, or several of them.
    """
    events = EventDispatcher(options.get("callbacks", ()), open_trackers(options.get("tracker", ())))
    with trusted(options.get("trust", False)):
        request = request_from_options(data, val, recipe, model, options)
        return train_request(request, str(out), options.get("time_limit", ""), events)


def train_request(
    request: RunRequest, out: str, time_limit: str, events: EventDispatcher, started: float | None = None
) -> Run:
    """Resolve a request, train, and write the artifacts; a time limit counts from `started`, or from now."""
    setup = SetupProgress(_create_display(), time.monotonic() if started is None else started)
    refuse_existing(out)
    named = request._asdict() | {"out": out, "time_limit": time_limit}
    call = [f"{name}={value!r}" for name, value in named.items() if value]
    if time_limit:
        setup.limit = _parse_limit(time_limit, request.settings)
        request = request._replace(settings={**request.settings, "length": TimeLimit(seconds=setup.limit)})
    with closing(setup.display), ExitStack() as stack:
        setup.begin("opening the data")
        complete, samples, reason, source = resolve(request)
        setup.limit = complete.length.seconds if isinstance(complete.length, TimeLimit) else 0.0
        group = stack.enter_context(open_process_group(select_device(complete)))
        check_recipe(complete, samples, group.world)
        messages = [reason, *samples.notes, *quick_check(samples, complete), suggest_weights(complete, samples)]
        if source and group.is_main:  # a mismatch of the weights is found before a folder is made
            messages += [*source.messages, *load_pretrained(complete.model.build(), source.loaded)]
        _log(group, messages)
        setup.begin("measuring")
        complete = plan_stages(fix_threads(complete, samples, group), samples, group)
        complete = fit_memory(complete, samples, group)
        if setup.limit:
            least = estimate_costs(complete, samples, group).least
            check_limit(setup.limit, group.max(round(setup.spent())), group.max(ceil(least)))
        path = group.run_on_main(lambda: str(create_run(out, complete, samples, call).path))
        task = build_task(complete, samples, group.device, source.loaded if source else None)
        if source:
            _log(group, continue_training(task, complete, source.file))
        del source  # training needs the memory
        return run_session(find_run(str(path)), samples, group, complete, task, setup, prepare=True, events=events)


def resume(
    where: str | Path,
    *,
    data: str | Path | Dataset[Any] | None = None,
    val: Dataset[Any] | None = None,
    trust: bool = False,
    callbacks: Sequence[RunCallback] = (),
    tracker: TrackerLike = (),
) -> Run:
    """Continue a run that was stopped or killed; it ends in the same bits as if it had never stopped.

    A run that was trained on a Dataset object needs it again. Data that was moved is given by its new path, and must
    have the same names and contents. Callbacks and trackers are those that are given here.
    """
    events = EventDispatcher(callbacks, open_trackers(tracker))
    began = time.monotonic()
    folder = find_run(str(where))
    refuse_unsigned(folder.checkpoints)
    with trusted(trust), ExitStack() as stack:
        recipe, samples = reopen_run(folder, RunRequest("" if data is None else data, val))
        group = stack.enter_context(open_process_group(select_device(recipe)))
        started = bool(group.run_on_main(lambda: has_metrics(folder.path) or latest_step(folder.checkpoints) > 0))
        # A run that has started has checkpoints; the weights that it started from may be gone.
        fresh = bool(recipe.weights) and not started
        source = open_model(recipe.weights, options=recipe.weights_options) if fresh else None
        task = build_task(recipe, samples, group.device, source.loaded if source else None)
        if source:
            continue_training(task, recipe, source.file)
        del source  # training needs the memory
        if recipe.threads != "auto":  # as recorded; older runs have not recorded it
            fix_threads(recipe, samples, group)
        limit = recipe.length.seconds if isinstance(recipe.length, TimeLimit) else 0.0
        earlier = max((change.seconds for change in read_plan(folder.path)), default=0.0)
        setup = SetupProgress(_create_display(), began, limit, earlier)
        stack.enter_context(closing(setup.display))
        return run_session(folder, samples, group, recipe, task, setup, prepare=not started, events=events)


def run_session(
    folder: RunFolder,
    samples: Samples,
    group: ProcessGroup,
    recipe: Recipe,
    task: Task,
    setup: SetupProgress,
    prepare: bool,
    events: EventDispatcher,
) -> Run:
    """Train a task for the remaining steps, and write the artifacts; `prepare` it before its first step."""
    _log(group, [recipe.precision.decide(probe_hardware(group.device)).message])
    with ExitStack() as stack:
        if group.is_main:
            stack.enter_context(Lock(folder.path))
        cached = build_cached_stage(task, recipe, samples, group, recipe.finetune.spans(1)[0].stage)
        if prepare:
            setup.begin("preparing")
            _log(group, [fit_task(task, recipe, samples, group)])
            images = build_train_images(recipe, samples, group, setup, cached)
            _log(group, [recipe.finetune.prepare(cached.task if cached else task, images)])
        parts = build_run_for_task(task, recipe, samples, group, cached=cached)
        artifacts = RunArtifacts(folder, parts, group)
        display = setup.display
        stop = stack.enter_context(SignalHandler(f"{display.erase_line}{STOP_MESSAGE}" if group.is_main else ""))
        if group.is_main:
            stack.callback(events.close)
        session = Session(folder, parts, group, stop, artifacts, events, setup.spent)
        stack.callback(session.close)
        session.restore()
        note = f"the run is saved; to resume it: vitral.resume({str(folder.path)!r})"
        events.raise_error(note)
        group.set_resume_hint(Run(folder, recipe, samples, session.step, parts.steps, 0, None).resume_command)
        _log(group, session.describe())
        with Progress(_span(session, setup), display) as progress:
            try:
                session.run(progress)
            except StopTraining as stopped:
                if stopped.signal:
                    artifacts.write_report(stopped.step, "stopped", session.best.step, None)
                    events.raise_error(note)
                    return Run(folder, recipe, samples, stopped.step, parts.steps, stopped.signal, None)
        events.raise_error(note)
        _log(group, warn_few_steps(parts) if setup.limit else [])
        run = finish_run(session, artifacts)
        if group.is_main:
            events.send(Finished(run.step, folder.path, dict(run.metrics)))
            events.raise_error(note)
        return run


def finish_run(session: Session, artifacts: RunArtifacts) -> Run:
    """Write the bundles, evaluate the best weights, and write their card and the report."""
    folder, group, step, best = artifacts.folder, artifacts.group, session.step, session.best.step
    lines = {line.step: line for line in session.evaluations}
    artifacts.write_bundle(folder.last, step, lines.get(step))
    if best == step:
        artifacts.write_bundle(folder.best, step, lines.get(step))
    else:
        artifacts.write_saved_bundle(folder.best, best, lines.get(best))
    _log(group, stage_outcomes(artifacts.parts.recipe, artifacts.parts.steps, session.evaluations))
    _log(group, [NOT_IMPROVED] if session.split == "val" and not best else [])
    group.barrier()
    evaluation = artifacts.evaluate(folder.best)
    if evaluation is not None:
        artifacts.update_card(folder.best, best, evaluation)
    artifacts.measure_best(best)
    artifacts.write_report(step, "done", best, evaluation)
    if session.contents is not None:
        session.contents.finish()
    if group.is_main:
        write_replay(folder, artifacts.parts.recipe, artifacts.parts.step_plan.changes)
        mark_finished(folder, step)
    group.barrier()
    return Run(folder, artifacts.parts.recipe, artifacts.parts.samples, step, artifacts.parts.steps, 0, evaluation)


def _span(session: Session, setup: SetupProgress) -> ProgressSpan:
    """What the bar shows: the steps, or the seconds of a run with a time limit."""
    plan = session.parts.plan
    span = (session.step, session.parts.steps, plan.steps_per_epoch, plan.batch_size)
    return TimedSpan(*span, setup.limit, setup.spent) if setup.limit else ProgressSpan(*span)


def _create_display() -> Display:
    """The display of this process: nothing with --quiet, and in all processes but the main one."""
    return create_display(quiet=read_world(os.environ).rank > 0 or log.level > logging.INFO)


def _parse_limit(time_limit: str, settings: Mapping[str, object]) -> float:
    """The time limit in seconds, 0 for none."""
    if not time_limit:
        return 0.0
    if lengths := [path for path in settings if path.partition(".")[0] in {"epochs", "steps", "length"}]:
        message = f"cannot be combined with {lengths[0]}: both set the length of training"
        raise ConfigError(message, code="config.conflict", where="time-limit", hint="remove one of them")
    return parse_seconds(time_limit)


def _log(group: ProcessGroup, messages: Sequence[str]) -> None:
    """Log messages once, in the main process."""
    for message in filter(None, messages if group.is_main else ()):
        log.info(message)
