"""`train` and `resume`: the two ways into a run, and the way through it."""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack

from vitral.core.errors import ConfigError
from vitral.core.machine import keep_freed_memory
from vitral.core.storage import Lock
from vitral.data.samples import Samples
from vitral.recipes.recipe import Recipe
from vitral.runs.artifacts import Output
from vitral.runs.autotune import fitted_in_memory, fitted_in_time
from vitral.runs.build import device_of, look_of, parts_around, task_of
from vitral.runs.folder import Folder, found, refuse_taken
from vitral.runs.preflight import looked_over, prepared, refuse_impossible, reopened
from vitral.runs.request import Wish, granted
from vitral.runs.result import Run
from vitral.runs.session import Session
from vitral.training.budget import seconds_of
from vitral.training.callbacks import Halt, Stop
from vitral.training.distributed.process_group import Group, group
from vitral.training.metrics import recorded
from vitral.training.precision import probe
from vitral.training.progress import Course, Progress, display
from vitral.weights.adapt import adapted
from vitral.weights.load import load

log = logging.getLogger("vitral")
STOPPING = "stopping after this step; once more to end at once\n"


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

    Settings are those of the recipe, such as `optimizer.lr=1e-3`, and in short `epochs`, `steps`, `image`, `lr` and
    `from`. Without the name of a recipe, one is chosen by the data.
    """
    began = time.monotonic()
    refuse_taken(out)
    limit = _limit(time_limit, settings)
    wanted, samples, why = granted(Wish(data, settings, recipe, model, root))
    named = {"recipe": recipe, "model": model, "root": root, "out": out, "time_limit": time_limit}
    call = [*map(repr, (data, *settings)), *(f"{name}={value!r}" for name, value in named.items() if value)]
    with group(device_of(wanted)) as team:
        refuse_impossible(wanted, samples, team.world)
        changes = adapted(wanted.model.build(), load(wanted.weights)) if wanted.weights and team.first else ()
        _tell(team, [why, *samples.notes, *looked_over(samples), *changes])
        wanted = fitted_in_memory(wanted, samples, team)
        if limit:
            wanted = fitted_in_time(wanted, samples, team, limit, began)
        path = team.decide(lambda: str(prepared(out, wanted, samples, call).path))
        return go(found(str(path)), wanted, samples, team)


def resume(where: str) -> Run:
    """Go on with a run that was stopped, however that happened; it ends as if it had not been, to the last bit."""
    folder = found(where)
    recipe, samples = reopened(folder)
    with group(device_of(recipe)) as team:
        return go(folder, recipe, samples, team)


def go(folder: Folder, recipe: Recipe, samples: Samples, team: Group) -> Run:
    """Take the steps that are left, and make of the run what is to be made of it."""
    keep_freed_memory()
    _tell(team, [recipe.precision.decide(probe(team.device)).words])
    with ExitStack() as stack:
        if team.first:
            stack.enter_context(Lock(folder.path))
        begun = bool(team.decide(lambda: bool(recorded(folder.path))))
        task = task_of(recipe, samples, team.device, begun)
        if not begun:
            _tell(team, [recipe.finetune.begin(task, look_of(recipe, samples, team))])
        parts = parts_around(task, recipe, samples, team)
        output = Output(folder, parts, team)
        stop = stack.enter_context(Stop(STOPPING if team.first else ""))
        session = Session(folder, parts, team, stop, output)
        stack.callback(session.close)
        session.begin()
        again = Run(folder, recipe, samples, session.step, parts.steps, 0, None).again
        team.advise(again)
        if session.over:
            _tell(team, [f"all of its steps were taken before: {session.step:,}"])
        course = Course(session.step, parts.steps, parts.plan.epoch_steps, parts.plan.batch)
        quiet = not team.first or log.level > logging.INFO
        with Progress(course, display(quiet)) as progress:
            try:
                session.go(progress)
            except Halt as halt:
                if halt.signal:
                    output.write_page(halt.step, "stopped", session.best.step, None)
                    return Run(folder, recipe, samples, halt.step, parts.steps, halt.signal, None)
        return finish(session, output)


def finish(session: Session, output: Output) -> Run:
    """Judge the best weights, and write bundles, cards and the page."""
    folder, team, step, best = output.folder, output.group, session.step, session.best.step
    output.keep(folder.last, step, session.latest)
    if best == step:
        output.keep(folder.best, step, session.latest)
    else:
        output.keep_saved(folder.best, best, session.best_line)
    team.meet()
    judgment = output.judge(folder.best)
    if judgment is not None:
        output.tell(folder.best, best, judgment)
    output.write_page(step, "done", best, judgment)
    team.meet()
    return Run(folder, output.parts.recipe, output.parts.samples, step, output.parts.steps, 0, judgment)


def _limit(time_limit: str, settings: Sequence[str]) -> float:
    """The seconds of a time limit, 0 without one."""
    if not time_limit:
        return 0.0
    if lengths := [setting for setting in settings if setting.startswith(("epochs=", "steps=", "length"))]:
        message = f"says how long to train, and so does {lengths[0]}"
        raise ConfigError(message, code="config.conflict", where="time-limit", hint="leave one of them out")
    return seconds_of(time_limit)


def _tell(team: Group, lines: Sequence[str]) -> None:
    """Say what there is to say, once."""
    for words in filter(None, lines if team.first else ()):
        log.info(words)
