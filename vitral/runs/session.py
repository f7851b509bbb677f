"""One session of a run: from the newest checkpoint, or the first step, to the end or to where it is stopped."""

import logging

from vitral.core.errors import VitralError, WeightsError
from vitral.data.loading.sampler import Plan
from vitral.data.samples import Samples, Split
from vitral.runs.artifacts import Output
from vitral.runs.build import Parts, loader_of
from vitral.runs.environment import Times
from vitral.runs.folder import Folder
from vitral.training.callbacks import Averaging, Best, Recording, Saving, Stop, Watching, best_of, line_of, watched
from vitral.training.checkpoints.checkpoint import newest, sweep
from vitral.training.checkpoints.state import read_state, restore, saved_of, tensors_of
from vitral.training.distributed.process_group import Group
from vitral.training.distributed.strategy import newest_for_all
from vitral.training.loop import Diverged, Job, feed, train
from vitral.training.metrics import Line, Metrics, recorded, rounded
from vitral.training.progress import Progress

log = logging.getLogger("vitral")
MOST_FILES = 5  # that a message names


class Session:
    """The parts at work. Every process of the group has one; only the first of them writes."""

    def __init__(self, folder: Folder, parts: Parts, group: Group, stop: Stop, output: Output) -> None:
        self.folder, self.parts, self.group, self.stop, self.output = folder, parts, group, stop, output
        self.saver = parts.recipe.distributed.keeper(folder.checkpoints, parts.recipe.checkpoints.keep, group)
        self.split = watched_split(parts.samples)
        self.watch = loader_of(parts.recipe, parts.samples, self.split, group.world) if self.split else None
        self.metrics: Metrics | None = None  # of the process that writes
        self.evaluations: list[Line] = []
        self.times: Times | None = None
        self.start = self.step = 0

    @property
    def best(self) -> Best:
        """The best evaluation. Images for testing choose nothing: without any for validation the last is the best."""
        return best_of(self.evaluations, "val") if self.split == "val" else Best(self.step, 0)

    @property
    def latest(self) -> Line | None:
        """The newest evaluation."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def best_line(self) -> Line | None:
        """The best evaluation in full."""
        return next((line for line in self.evaluations if line.step == self.best.step), None)

    def begin(self) -> None:
        """Put back what the newest whole checkpoint has, or save the start where there is none yet."""
        if self.group.first:
            sweep(self.folder.checkpoints)
        self.group.meet()
        found = newest_for_all(self.folder.checkpoints, self.group)
        for reason in found.passed_over if self.group.first else ():
            log.warning(f"passed over: {reason}")
        if found.checkpoint is not None:
            learning = self.parts.learning
            tensors, state = self.parts.recipe.distributed.load(found.checkpoint, learning.task, self.group)
            assert isinstance(state, dict)
            self.step = restore(learning, self.parts.plan, tensors, read_state(state))
        else:
            self._first_checkpoint()
        if self.group.first:
            self.metrics = Metrics(self.folder.path)
            self.metrics.cut(self.step)
            self.times = Times(self.folder.path, self.group.world.size, self.group.device)
        self.start = self.step
        self.evaluations = self._recorded()

    def _first_checkpoint(self) -> None:
        """Save the start, so that from the first line of the record on there always is a checkpoint."""
        last = self.group.decide(lambda: max((line.step for line in recorded(self.folder.path)), default=0))
        if last:
            raise WeightsError(
                f"the run came to step {last}, and no whole checkpoint of it is left",
                code="weights.not_found",
                where=str(self.folder.checkpoints),
                hint="put one back, or begin another run from its best weights: vitral train DATA --from RUN",
            )
        self.save(0)
        self.saver.wait()

    @property
    def over(self) -> bool:
        """Whether no step is left to take."""
        return self.step == self.parts.steps or self.enough

    def go(self, progress: Progress) -> None:
        """Take all steps that are left; `Halt` says that some still are."""
        parts = self.parts
        jobs: list[Job] = [Averaging(parts.learning), progress]
        if self.metrics is not None:
            jobs.append(Recording(self.metrics, parts.plan.epoch_steps, parts.descent.rate))
        if self.watch is not None:
            every = max(1, round(parts.recipe.eval_every * parts.plan.epoch_steps))
            jobs.append(Watching(every, lambda step: self.evaluate(step, progress)))
        jobs.append(
            Saving(parts.recipe.checkpoints.every_seconds, self.save, self._is_best, self._halted, self.group.any)
        )
        last = self.step if self.over else parts.steps
        batches = feed(parts.loader, self.step, last, parts.serving)
        try:
            train(parts.spread.module, batches, parts.descent, self.step, last, jobs)
        except Diverged as error:
            raise self._told(error) from None
        finally:
            batches.close()
            self.saver.close()
            self.note()
        self.step = last

    def evaluate(self, step: int, progress: Progress) -> None:
        """Evaluate the averaged weights, and keep them if they are the best so far."""
        assert self.watch is not None
        assert self.split is not None
        self.saver.wait()  # a thread that writes would not survive in the workers of the loader
        batches = feed(self.watch, 0, self.watch.plan.epoch_steps, self.parts.serving)
        outcome = self.group.joined(watched(self.parts.learning, batches))
        line = rounded(line_of(step, self.parts.plan.epoch_steps, self.split, outcome))
        self.evaluations.append(line)
        self.step = step
        if self.metrics is not None:
            self.metrics.add(line)
        self.note()
        progress.evaluated(step, self.split, line.values)
        if self._is_best(step):
            self.output.keep(self.folder.best, step, line)

    def note(self) -> None:
        """Write down what the session has cost so far."""
        if self.times is not None:
            self.times.add(self.step, (self.step - self.start) * self.parts.plan.batch)

    def close(self) -> None:
        """Write no more to the record and the times."""
        for journal in (self.metrics, self.times):
            if journal is not None:
                journal.close()

    def save(self, step: int) -> None:
        """Begin to write a checkpoint."""
        self.step = step
        learning = self.parts.learning
        if self.metrics is not None:
            self.metrics.flush()  # a checkpoint must not be newer than the record
        saved = saved_of(learning, self.parts.plan, step)
        self.saver.save(step, tensors_of(learning), saved.model_dump(mode="json"), self.best.step or None)

    def _recorded(self) -> list[Line]:
        """The evaluations so far, as the first process has them: on a shared disk others might see older ones."""
        lines = recorded(self.folder.path) if self.group.first else []
        told = self.group.share([[*line[:3], dict(line.values)] for line in lines if line.split == self.split])
        assert isinstance(told, list)
        return [Line(*line) for line in told]  # type: ignore[misc]  # what went in comes out

    @property
    def enough(self) -> bool:
        """Whether the recipe would stop early, now."""
        return self.split == "val" and self.parts.recipe.early_stopping.enough(self.best.since)

    def _is_best(self, step: int) -> bool:
        return self.split == "val" and self.best.step == step

    def _halted(self) -> int | None:
        if number := self.group.most(self.stop.signal):
            return number
        return 0 if self.enough else None

    def _told(self, error: Diverged) -> VitralError:
        """The error with the files of the batch and the checkpoint before it."""
        self.saver.wait()
        step, plan = error.step, self.parts.plan
        whole = Plan(plan.labels, plan.order, plan.batch, plan.seed)
        names = [self.parts.samples.store.address(self.parts.loader.names[place]) for place in whole.places(step)]
        more = f" and {len(names) - MOST_FILES:,} more" if len(names) > MOST_FILES else ""
        last = newest(self.folder.checkpoints).checkpoint
        kept = f"the last good checkpoint is {last.path}" if last else "there is no checkpoint yet"
        message = f"{error.message}; its batch: {', '.join(names[:MOST_FILES])}{more}; {kept}"
        return Diverged(message, step=step, where=error.where, hint=error.hint)


def watched_split(samples: Samples) -> Split | None:
    """The images that are watched in training: those for validation, or for testing where there are none."""
    splits: tuple[Split, ...] = ("val", "test")
    return next((split for split in splits if samples.of(split)), None)
