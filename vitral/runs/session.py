"""One session of a run: from its newest checkpoint or its first step until it ends or is stopped."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from vitral.core.errors import ConfigError, VitralError, WeightsError
from vitral.core.jsonl import LogDigest
from vitral.data.loading.sampler import SamplingPlan
from vitral.models.base import Model
from vitral.recipes.recipe import TimeLimit
from vitral.runs.artifacts import RunArtifacts
from vitral.runs.autotune import estimate_costs
from vitral.runs.build import RunParts, build_loader, build_stage, first_split, stage_of
from vitral.runs.callbacks.contents import ContentRecorder
from vitral.runs.callbacks.events import Evaluated, EventDispatcher, Logged, RunEvent, Saved, Started
from vitral.runs.callbacks.features import FeatureMonitor
from vitral.runs.folder import RunFolder, TimeLog
from vitral.runs.messages import describe_resume, describe_start, warn_few_steps
from vitral.training.callbacks import (
    Best,
    Checkpointing,
    CollapseDetector,
    MetricsLogger,
    SignalHandler,
    Validation,
    WeightAveraging,
    evaluate,
    find_best,
    metrics_line,
)
from vitral.training.checkpoints.checkpoint import checkpoint_path, find_newest, open_checkpoint, recover_drafts
from vitral.training.checkpoints.state import parse_state, restore_state, saved_state, state_tensors
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import find_newest_for_all
from vitral.training.loop import Callback, Diverged, StepResult, train
from vitral.training.metrics import TRAIN, MetricsLine, MetricsLog, cut_metrics, read_metrics, round_values
from vitral.training.progress import Progress
from vitral.training.time_limit import (
    MAX_STEPS,
    PLAN_FILE,
    PlanChange,
    PlanLog,
    TimeBudget,
    TimePlanning,
    read_plan,
)

log = logging.getLogger("vitral")
MAX_FILES = 5  # that an error names
LIVE_SHARE = 0.03  # of the time of a session that the live report may take
BUNDLES = 3  # that are written at the end


class Session:
    """Trains the parts of a run. Every process has a session; only the main process writes files and sends events."""

    def __init__(
        self,
        folder: RunFolder,
        parts: RunParts,
        group: ProcessGroup,
        stop: SignalHandler,
        artifacts: RunArtifacts,
        events: EventDispatcher,
        spent: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.parts, self.group, self.stop, self.artifacts = folder, parts, group, stop, artifacts
        self.events = events
        self.writer = parts.strategy.checkpoint_writer(folder.checkpoints, parts.recipe.checkpoints.keep)
        self.split = first_split(parts.samples, "val", "test")
        self.val_loader = build_loader(parts.recipe, parts.samples, self.split, group.world) if self.split else None
        self.metrics: MetricsLog | None = None  # of the main process
        self.evaluations: list[MetricsLine] = []
        self.times: TimeLog | None = None
        self.clock = spent  # by which a time limit is kept
        self.start = self.step = 0
        self.every = max(1, round(parts.recipe.eval_every * parts.plan.steps_per_epoch))  # steps
        length = parts.recipe.length
        self.budget = TimeBudget(length.seconds, spent, self.every) if isinstance(length, TimeLimit) else None
        self.plan_log: PlanLog | None = None  # of the main process, with a time limit
        self.contents = ContentRecorder(folder, parts.samples) if group.is_main else None
        # Sharded weights cannot be run by the main process alone.
        watched = group.is_main and not parts.recipe.task.labeled and not parts.strategy.sharded
        self.monitor = FeatureMonitor(parts.recipe, parts.samples, group.device) if watched else None
        artifacts.monitor = self.monitor
        self._save_seconds = 0.0  # of the first checkpoint
        self._report_seconds = 0.0  # of the live report
        self._unreported: int | None = None  # step of a checkpoint whose event was not sent yet

    @property
    def best(self) -> Best:
        """The best evaluation. Test images select nothing: without validation images the last step is the best."""
        if self.split != "val":
            return Best(self.step, 0)
        return find_best(self.evaluations, "val", self.parts.recipe.task.best_by)

    def restore(self) -> None:
        """Restore the newest complete checkpoint, or save a first one."""
        if self.group.is_main:
            recover_drafts(self.folder.checkpoints)
        self.group.barrier()
        found = find_newest_for_all(self.folder.checkpoints, self.group)
        for reason in found.rejected if self.group.is_main else ():
            log.warning(f"skipped a damaged checkpoint: {reason}")
        if found.checkpoint is not None:
            tensors, document = self.parts.strategy.load_checkpoint(found.checkpoint)
            assert isinstance(document, dict)
            state = parse_state(document)
            if state.metrics is not None and self.group.is_main:
                cut_metrics(self.folder.path, state.metrics)
            self._use_stage(stage_of(self.parts, found.checkpoint.step))
            self.step = restore_state(self.parts.state, self.parts.plan, tensors, state)
            self._restore_plan(state.changes)
            if self.contents is not None:
                self.contents.verify(state.content, resumed=True)
        else:
            self._restore_plan(())
            self._first_checkpoint()
        if self.group.is_main:
            self.metrics = self.metrics or MetricsLog(self.folder.path, on_line=self._report_line)
            self.metrics.truncate(self.step)
            self.times = TimeLog(self.folder.path, self.group.world.size, self.group.device)
        self.start = self.step
        # The main process reads the evaluations so far: others may see an older file on a shared disk.
        lines = read_metrics(self.folder.path) if self.group.is_main else []
        shared = self.group.broadcast([[*line[:3], dict(line.values)] for line in lines if line.split == self.split])
        assert isinstance(shared, list)
        self.evaluations = [MetricsLine(*line) for line in shared]  # type: ignore[misc]  # JSON of the lines above
        self._send(Started(self.folder.path, self.parts.recipe, self.step, self.parts.steps))
        self.report_saved()

    def _restore_plan(self, saved: Sequence[PlanChange]) -> None:
        """With a time limit: follow the plan so far, which begins with what the checkpoint has of it."""
        if self.budget is None:
            return
        if self.group.is_main:
            self.plan_log = PlanLog(self.folder.path)
            if not saved and not read_plan(self.folder.path):
                self.plan_log.add(PlanChange(step=0, steps=self.parts.steps))
        shared = self.group.run_on_main(lambda: [each.model_dump() for each in read_plan(self.folder.path)])
        assert isinstance(shared, list)
        changes = [PlanChange.parse(each) for each in shared if isinstance(each, dict)]
        taken = [(each.step, each.steps) for each in changes[: len(saved)]]  # what the bits depend on
        if not changes or taken != [(each.step, each.steps) for each in saved]:
            message = "is not the plan that the newest checkpoint was trained by"
            where, hint = self.folder.path / PLAN_FILE, "restore it, or start a new run"
            raise VitralError(message, code="run.bad_log", where=where, hint=hint)
        for change in changes:
            self.parts.step_plan.add(change)

    def _plan_steps(self, step: int) -> PlanChange:
        """Plan the rest of the run by its time limit. It is on the disk before it acts. A collective."""

        def change() -> dict[str, JsonValue]:
            assert self.budget is not None
            assert self.plan_log is not None
            found = self.budget.plan(step)
            self.plan_log.add(found)
            return found.model_dump()

        shared = self.group.run_on_main(change)
        assert isinstance(shared, dict)
        found = PlanChange.parse(shared)
        if len(self.parts.step_plan.changes) == 1 and self.group.is_main:
            try:
                self.parts.recipe.schedule.check(found.steps)
            except ConfigError as error:
                log.warning(f"warning: {error}")
        return found

    def _start_budget(self) -> list[Callback]:
        """Begin to time the steps; the callback that plans them, if there is a time limit."""
        if self.budget is None or self.is_complete:
            return []
        costs = estimate_costs(self.parts.recipe, self.parts.samples, self.group, self.parts.state, self.clock)
        self.budget.evaluation = self.budget.evaluation or costs.evaluation
        self.budget.finish = costs.finish + BUNDLES * self._save_seconds
        self.budget.begin(self.step)
        return [TimePlanning(self.parts.step_plan, self.budget, self.step, self._plan_steps)]

    def _first_checkpoint(self) -> None:
        """Save step 0, so that there is a checkpoint before the first line of metrics."""
        last = self.group.run_on_main(lambda: max((line.step for line in read_metrics(self.folder.path)), default=0))
        if last:
            raise WeightsError(
                f"the run reached step {last}, but has no complete checkpoint",
                code="weights.not_found",
                where=self.folder.checkpoints,
                hint="restore one, or start a new run from its best weights: vitral train DATA --weights RUN",
            )
        began = self.clock()
        self.save(0)
        self.writer.wait()
        self._save_seconds = self.clock() - began

    @property
    def is_complete(self) -> bool:
        """Whether no steps are left."""
        return self.step == self.parts.step_plan.steps_after(self.step) or self.should_stop_early

    def describe(self) -> list[str]:
        """What is about to be trained, before the first step; later, where the run stands."""
        if not self.step:
            watched = [self.monitor.describe()] if self.monitor is not None else []
            return [*describe_start(self.folder, self.parts, self.group), *watched, *warn_few_steps(self.parts)]
        best = next((line for line in self.evaluations if self._is_best(line.step)), None)
        left = 0 if self.is_complete else self.parts.steps - self.step
        return describe_resume(self.folder, self.parts, self.step, best, left)

    def run(self, progress: Progress) -> None:
        """Train for the remaining steps; `StopTraining` is raised if the run stops before the last."""
        self._evaluate_start(progress)
        try:
            self._train_stage(progress)
            while not self.is_complete:
                self._begin_next_stage()
                self._train_stage(progress)
        finally:
            self.writer.close()
            self.report_saved()
            self.record_time()

    def _train_stage(self, progress: Progress) -> None:
        """Train for the remaining steps of a stage of fine-tuning: for most runs, of the whole run."""
        parts = self.parts
        callbacks: list[Callback] = [*self._start_budget(), WeightAveraging(parts.state), progress]
        if self.metrics is not None:
            callbacks.append(MetricsLogger(self.metrics, parts.plan.steps_per_epoch, parts.update_rule.lr))
        if parts.recipe.task.collapse:
            callbacks.append(CollapseDetector(parts.recipe.task.collapse, parts.plan.steps_per_epoch))
        if self.val_loader is not None:
            callbacks.append(Validation(self.every, lambda step: self.evaluate(step, progress)))
        seconds, several = parts.recipe.checkpoints.every_seconds, self.group.world.size > 1
        checkpointing = Checkpointing(
            seconds, self.save, self._is_best, lambda: self.should_stop_early, self.stop, several
        )
        if self.contents is not None:
            callbacks.append(self.contents)  # begins after the first step, which does not wait for it
        callbacks += [checkpointing, SavedReporter(self)]
        complete, start = self.is_complete, self.step
        last = start if complete else MAX_STEPS if self.budget else parts.stage_end(MAX_STEPS)
        steps = start if complete else parts.stage_end
        batches = parts.batches(start, last)
        try:
            train(parts.strategy.module, batches, parts.update_rule, start, steps, callbacks, checkpointing.signals)
        except Diverged as error:
            raise self._describe_divergence(error) from None
        finally:
            batches.close()
        self.step = start if complete else parts.stage_end(MAX_STEPS)

    def _begin_next_stage(self) -> None:
        """Go on with the next stage of fine-tuning, from the best weights so far. A collective.

        They are in a checkpoint, so a run that resumes here does the same.
        """
        self.writer.wait()
        self.report_saved()
        self.group.barrier()
        path = checkpoint_path(self.folder.checkpoints, self.best.step)
        saved = self.parts.strategy.load_checkpoint(open_checkpoint(path)).tensors
        self.parts.state.task.load_state_dict(saved["task"] | saved.get("average", {}))
        self._use_stage(self.parts.number + 1)

    def _use_stage(self, number: int) -> None:
        """Build what trains in a stage of fine-tuning."""
        parts = self.parts
        if number != parts.number:
            self.parts = self.artifacts.parts = build_stage(
                parts.state.task, parts.recipe, parts.samples, self.group, number
            )

    def _evaluate_start(self, progress: Progress) -> None:
        """Evaluate the weights that a run starts from: they are the best until training improves on them.

        It comes after the checkpoint of step 0, which stays for as long as these weights are the best.
        """
        if self.parts.recipe.weights and self.split == "val" and not self.step and not self.evaluations:
            self.evaluate(0, progress)

    def evaluate(self, step: int, progress: Progress) -> None:
        """Evaluate the averaged weights, and write a bundle if they are the best so far."""
        assert self.split
        assert self.val_loader
        began = self.clock()
        self.writer.wait()  # the workers of the loader are forked, and a thread does not survive that
        self.report_saved()
        outcome = self.group.reduce_outcome(
            evaluate(self.parts.state, self.parts.eval_batches(self.val_loader), self.parts.eval_module)
        )
        line = metrics_line(step, self.parts.plan.steps_per_epoch, self.split, outcome)
        line = round_values(line._replace(values={**line.values, **self._measure_features(step)}))
        self.evaluations.append(line)
        self.step = step
        if self.metrics is not None:
            self.metrics.add(line)
        self.record_time()
        is_best = self._is_best(step)
        progress.show_evaluation(step, self.split, line.values, is_best)
        if is_best:
            self.artifacts.write_bundle(self.folder.best, step, line)
        self._write_live_report(step)
        if self.budget is not None:
            self.budget.add_evaluation(self.clock() - began)
        self._send(Evaluated(step, line.epoch, self.split, dict(line.values), is_best))

    def _measure_features(self, step: int) -> dict[str, float]:
        """What the features of the averaged weights are worth, for a task without labels. Nothing depends on it."""
        if self.monitor is None:
            return {}
        model = self.parts.model
        assert isinstance(model, Model)
        with self.parts.state.average.applied_to(self.parts.state.task):
            self.artifacts.features = self.monitor.measure(model, step)
        return self.monitor.metrics(self.artifacts.features)

    def _write_live_report(self, step: int) -> None:
        """Write the report of a run without labels after an evaluation, as long as this takes little of its time."""
        spent = self.times.seconds() if self.times is not None else 0.0
        if self.monitor is None or self._report_seconds > LIVE_SHARE * spent:
            return
        began = time.monotonic()
        self.artifacts.write_report(step, "running", self.best.step, None)
        self._report_seconds += time.monotonic() - began

    def record_time(self) -> None:
        """Log the time and memory of the session so far."""
        if self.times is not None:
            self.times.add(self.step, (self.step - self.start) * self.parts.plan.batch_size)

    def close(self) -> None:
        """Close the logs."""
        for file in (self.metrics, self.times, self.plan_log, self.contents):
            if file is not None:
                file.close()

    def save(self, step: int) -> None:
        """Start to write a checkpoint."""
        self.step = step
        # Before the checkpoint, which records them: on resume they are verified, and cut to what they were.
        metrics = self._flush_metrics()
        changes = self.parts.step_plan.changes if self.budget is not None else ()
        content = self.contents.content if self.contents is not None else ""
        saved = saved_state(self.parts.state, self.parts.plan, step, changes, content, metrics).model_dump(mode="json")
        self.writer.wait()
        self.report_saved()
        best = self.best.step if self.evaluations else None
        self.writer.save(step, state_tensors(self.parts.state), saved, best)
        self._unreported = step

    def _flush_metrics(self) -> LogDigest | None:
        """The digest of the metrics so far, which are on the disk; null in the other processes."""
        if not self.group.is_main:
            return None
        if self.metrics is None:  # before the first checkpoint
            self.metrics = MetricsLog(self.folder.path, on_line=self._report_line)
        return self.metrics.flush()

    def report_saved(self) -> None:
        """Send the event of a checkpoint once it is on disk."""
        if self._unreported is not None and self.writer.is_saved:
            step, self._unreported = self._unreported, None
            self._send(Saved(step, checkpoint_path(self.folder.checkpoints, step)))

    def _send(self, event: RunEvent) -> None:
        """Send an event, in the main process; if a callback raises, all processes save and stop after a step."""
        if self.group.is_main:
            self.events.send(event)
            if self.events.error is not None:
                self.stop.request_stop()

    def _report_line(self, line: MetricsLine) -> None:
        if line.split == TRAIN:  # `evaluate` sends the others
            self._send(Logged(line.step, line.epoch, dict(line.values)))  # a callback may change its copy

    @property
    def should_stop_early(self) -> bool:
        """Whether early stopping ends the run now."""
        return self.split == "val" and self.parts.recipe.early_stopping.should_stop(self.best.evaluations_since)

    def _is_best(self, step: int) -> bool:
        return self.split == "val" and self.best.step == step

    def _describe_divergence(self, error: Diverged) -> VitralError:
        """The error with the files of the batch and the newest checkpoint."""
        self.writer.wait()
        step, plan = error.step, self.parts.plan
        whole = SamplingPlan(plan.labels, plan.order, plan.batch_size, plan.seed)
        names = [self.parts.samples.store.address(self.parts.loader.names[index]) for index in whole.indices(step)]
        more = f" and {len(names) - MAX_FILES:,} more" if len(names) > MAX_FILES else ""
        last = find_newest(self.folder.checkpoints).checkpoint
        newest = f"the newest checkpoint is {last.path}" if last else "there is no checkpoint yet"
        message = f"{error.message}; files of the batch: {', '.join(names[:MAX_FILES])}{more}; {newest}"
        return Diverged(message, step)


@dataclass(frozen=True)
class SavedReporter:
    """Looks after every step whether the checkpoint that is being written is complete."""

    session: Session

    def due(self, step: int, steps: int) -> bool:
        return True

    def run(self, step: int, result: StepResult) -> None:
        self.session.report_saved()
