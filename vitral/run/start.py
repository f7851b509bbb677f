"""`train` and `resume`: the two ways into a run, and the way through it."""

import logging
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from vitral.data.doctor.check import quick
from vitral.data.doctor.report import sentence
from vitral.data.samples import Samples
from vitral.data.sources.split import write_split
from vitral.errors import DataError
from vitral.model.allocator import keep_freed_memory
from vitral.recipe import Recipe
from vitral.report.story import Judgement
from vitral.run.finish import Output
from vitral.run.parts import device_of, parts_of
from vitral.run.session import Session
from vitral.run.wishes import Wish, granted, opened
from vitral.run.within import fitted_in_memory, fitted_in_time
from vitral.train.display import display
from vitral.train.distributed.group import Group, group
from vitral.train.environment import Environment, environment
from vitral.train.folder import Folder, claimed, found
from vitral.train.jobs import Halt
from vitral.train.lock import Lock
from vitral.train.precision import probe
from vitral.train.progress import Course, Progress
from vitral.train.stop import Stop
from vitral.weights.adapt import adapted
from vitral.weights.load import load

log = logging.getLogger("vitral")


class Run(NamedTuple):
    """A run: where it is, what it was, how far it came, and what its weights are worth if that is known."""

    folder: Folder
    recipe: Recipe
    samples: Samples
    step: int
    steps: int
    signal: int  # that stopped it; 0 if nothing did
    judgement: Judgement | None

    def summary(self) -> list[str]:
        """What a user wants to know at the end, a line each, with what to type next."""
        path = shlex.quote(str(self.folder.path))
        if self.signal:
            name = signal.Signals(self.signal).name
            return [f"{name}: stopped and saved after step {self.step:,} of {self.steps:,}; to go on:", self.again]
        lines = [f"report: {self.folder.report}"]
        if self.judgement is not None:
            found, split = self.judgement.accuracy, self.judgement.split
            low, high = 100 * found.interval.low, 100 * found.interval.high
            words = (
                f"accuracy {found.top1:.1%} on {found.images:,} {split} images (95 % sure: {low:.1f} to {high:.1f} %)"
            )
            lines.insert(0, words)
        return [*lines, f"next, to learn more from here: vitral train {shlex.quote(self.samples.where)} --from {path}"]

    @property
    def again(self) -> str:
        """The line that goes on with it."""
        return f"vitral train --resume {shlex.quote(str(self.folder.path))}"


def train(
    data: str,
    *settings: str,
    recipe: str = "",
    model: str = "",
    root: str = "",
    out: str = "",
    time_limit: str = "",
) -> Run:
    """Train on images, and leave a run folder: `vitral.train("photos", "epochs=20", model="S/16")`.

    Settings are those of the recipe, such as `optimiser.rate=1e-3`, and in short `epochs`, `steps`, `image`, `lr` and
    `from`. Without the name of a recipe, one is chosen by the data.
    """
    began = time.monotonic()
    wanted, samples, why = granted(Wish(data, settings, recipe, model, root))
    with group(device_of(wanted)) as team:
        tell(team, [why, *samples.notes, *looked_over(samples), *told(wanted, team)])
        wanted = fitted_in_memory(wanted, samples, team)
        if time_limit:
            wanted = fitted_in_time(wanted, samples, team, time_limit, began)
        path = team.decide(lambda: str(prepared(out, wanted, samples).path))
        return go(found(str(path)), wanted, samples, team)


def resume(where: str) -> Run:
    """Go on with a run that was stopped, however that happened; it ends as if it had not been, to the last bit."""
    folder = found(where)
    recipe = Recipe.from_json(folder.recipe.read_bytes())
    samples = opened(recipe)
    refuse_other_data(folder, samples)
    with group(device_of(recipe)) as team:
        tell(team, told(recipe, team))
        return go(folder, recipe, samples, team)


def tell(team: Group, lines: Sequence[str]) -> None:
    """Say what there is to say, once."""
    for words in filter(None, lines if team.first else ()):
        log.info(words)


def told(recipe: Recipe, team: Group) -> list[str]:
    """What becomes of the precision and of the weights that were asked for."""
    decision = recipe.precision.decide(probe(team.device))
    changes = adapted(recipe.model.build(), load(recipe.weights)) if recipe.weights and team.first else ()
    return [decision.words, *changes]


def looked_over(samples: Samples) -> list[str]:
    """What the doctor finds in seconds, a line each; DataError if a file cannot be read."""
    findings = quick(samples).findings
    for finding in findings:
        if finding.kind == "corrupt":
            example = finding.examples[0]
            raise DataError(
                f"{finding.title}: {sentence(example)}",
                where=samples.where,
                remedy=f"{finding.remedy}; all that is wrong: vitral check {shlex.quote(samples.where)}",
            )
    return [f"{finding.severity}: {finding.title}" for finding in findings if finding.severity != "note"]


def prepared(out: str, recipe: Recipe, samples: Samples) -> Folder:
    """A new folder with all that is known before the first step."""
    folder = claimed(out, samples.where)
    record = environment(samples.where, samples.fingerprint(), ["vitral", *sys.argv[1:]])
    folder.environment.write_text(record.to_json())
    write_split(folder.split, samples.rows())
    folder.recipe.write_text(recipe.to_json())  # last: with it the folder is a run
    return folder


def refuse_other_data(folder: Folder, samples: Samples) -> None:
    """A run goes on with the very images that it began with."""
    before = Environment.from_json(folder.environment.read_bytes()).fingerprint
    if samples.fingerprint() != before:
        raise DataError(
            "the images, their labels or their sizes are not those that the run began with",
            where=samples.where,
            remedy=f"put them back as {folder.split} lists them, or begin another run",
        )


def go(folder: Folder, recipe: Recipe, samples: Samples, team: Group) -> Run:
    """Take the steps that are left, and make of the run what is to be made of it."""
    keep_freed_memory()
    with ExitStack() as stack:
        if team.first:
            stack.enter_context(Lock(folder.path))
        team.advise(f"vitral train --resume {shlex.quote(str(folder.path))}")
        stop = stack.enter_context(Stop())
        parts = parts_of(recipe, samples, team)
        output = Output(folder, parts, team)
        session = Session(folder, parts, team, stop, output)
        stack.callback(session.close)
        start = session.begin()
        course = Course(start, parts.steps, parts.plan.epoch_steps, parts.plan.batch)
        quiet = not team.first or not log.isEnabledFor(logging.INFO)
        with Progress(course, display(quiet)) as progress:
            try:
                session.go(progress)
            except Halt as halt:
                if halt.signal:
                    output.write_page(halt.step, "stopped", None)
                    return Run(folder, recipe, samples, halt.step, parts.steps, halt.signal, None)
        return finish(session, output)


def finish(session: Session, output: Output) -> Run:
    """Judge the best weights, and write bundles, cards and the page; done again after a kill, it comes out the same."""
    folder, team, step = output.folder, output.group, session.step
    best = session.best.step
    output.keep(folder.last, step)
    if session.split != "val":  # nothing was chosen, so the last weights stand for the best
        output.keep(folder.best, step)
    team.meet()
    judgement = output.judge(folder.best)
    if judgement is not None:
        output.tell(folder.best, best, judgement)
    output.write_page(step, "done", judgement)
    team.meet()
    return Run(folder, output.parts.recipe, output.parts.samples, step, output.parts.steps, 0, judgement)
