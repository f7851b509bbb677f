"""A run that takes its steps only when asked to, to be measured turn by turn. Nothing else of it differs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from shutil import rmtree
from tempfile import mkdtemp
from threading import Thread

from vitral.core.machine import keep_freed_memory
from vitral.data.loading.loader import Batch, Loader
from vitral.data.samples import Item, Samples
from vitral.recipes.recipe import Recipe
from vitral.runs.artifacts import RunArtifacts
from vitral.runs.build import build_run, select_device
from vitral.runs.callbacks.events import EventDispatcher
from vitral.runs.folder import find_run
from vitral.runs.preflight import create_run
from vitral.runs.session import Session
from vitral.training.callbacks import SignalHandler
from vitral.training.distributed.process_group import open_process_group
from vitral.training.progress import LineDisplay, Progress, ProgressSpan


class Over(Exception):
    """Nobody will ask for another step."""


class Gate:
    """Where the thread of a run waits between two turns."""

    def __init__(self) -> None:
        self.wanted: SimpleQueue[int] = SimpleQueue()  # steps of a turn; 0 is the end of it all
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()  # a turn, or the run, and what went wrong if any
        self._left = 0

    def pass_through(self) -> None:
        """Called by the run before each step: wait here if the turn is over."""
        if not self._left:
            self.done.put(None)
            self._left = self.wanted.get()
            if not self._left:
                raise Over
        self._left -= 1


class Gated(Loader):
    """A loader that has every step begin at a gate, with its data still to be had."""

    def __init__(self, loader: Loader, items: Sequence[Item], gate: Gate) -> None:
        super().__init__(items, loader.store, loader.pipeline, loader.plan, loader.workers)
        self._gate = gate

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        stream = super().batches(start, stop)
        for _ in range(start, stop):
            self._gate.pass_through()
            yield next(stream)


class StepwiseRun:
    """The session of a run, with its folder, its record, its progress as lines, and its checkpoints.

    It is one process of several where the environment says so, as torchrun does.
    """

    def __init__(self, recipe: Recipe, samples: Samples) -> None:
        keep_freed_memory()
        self._stack, self._gate = ExitStack(), Gate()
        team = self._stack.enter_context(open_process_group(select_device(recipe)))
        self.folder = find_run(str(team.run_on_main(partial(made, recipe, samples))))
        if team.is_main:
            self._stack.callback(rmtree, self.folder.path, ignore_errors=True)
        parts = build_run(recipe, samples, team)
        gated = Gated(parts.loader, samples.of("train"), self._gate)
        parts = replace(parts, loader=gated, stages=[(0, gated)])
        artifacts = RunArtifacts(self.folder, parts, team)
        session = Session(self.folder, parts, team, SignalHandler(), artifacts, EventDispatcher())
        session.restore()
        course = ProgressSpan(session.step, parts.steps, parts.plan.steps_per_epoch, parts.plan.batch_size)
        nowhere = self._stack.enter_context(open(os.devnull, "w"))  # noqa: SIM115, the stack closes it
        self.steps_per_epoch = parts.plan.steps_per_epoch
        self._thread = Thread(target=self._run, args=(session, Progress(course, LineDisplay(nowhere))), daemon=True)
        self._thread.start()
        self._wait()

    def take(self, steps: int) -> None:
        """Take so many steps, with all that a run does after each of them."""
        self._gate.wanted.put(steps)
        self._wait()

    def close(self) -> None:
        """Leave the run where it is, and remove its folder."""
        self._gate.wanted.put(0)
        self._thread.join()
        self._stack.close()

    def _run(self, session: Session, progress: Progress) -> None:
        try:
            with progress:
                session.run(progress)
        except Over:
            return
        except BaseException as error:  # raised again by who asked for the step
            self._gate.done.put(error)
        else:
            self._gate.done.put(None)

    def _wait(self) -> None:
        error = self._gate.done.get()
        if error is not None:
            raise error


def made(recipe: Recipe, samples: Samples) -> str:
    """A new folder of a run, in the usual place for what does not last."""
    return str(create_run(mkdtemp(prefix="vitral-benchmark-"), recipe, samples, []).path)
