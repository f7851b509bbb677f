"""`paper`: run an experiment of the paper at a scale, or go on with one that was stopped or killed."""

import logging
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from vitral.core.errors import ConfigError, format_choices
from vitral.core.machine import cpu_count
from vitral.core.storage import Lock, write_file_atomically
from vitral.experiments.cost import PlanSummary, summarize_plan
from vitral.experiments.drawing import draw_result, to_png
from vitral.experiments.experiment import SCALES, Experiment, Scale
from vitral.experiments.folder import ExperimentFolder, Request, create_experiment, default_path
from vitral.experiments.plan import Plan, plan_experiment
from vitral.experiments.registry import get_experiment
from vitral.experiments.results import ExperimentResult
from vitral.experiments.runner import Runner, Stopped
from vitral.training.distributed.process_group import read_world

log = logging.getLogger("vitral")


@dataclass(frozen=True)
class PaperRun:
    """An experiment that was run: its folder and results, and the signal that stopped it, 0 for none."""

    folder: ExperimentFolder
    result: ExperimentResult
    signal: int = 0

    @property
    def path(self) -> Path:
        """The folder of the experiment."""
        return self.folder.path

    @property
    def figure(self) -> Path:
        """The figure, a PNG file."""
        return self.folder.figure

    def __repr__(self) -> str:
        return f"PaperRun({str(self.path)!r})\n{self.result}"

    def summary(self) -> list[str]:
        """The lines that are logged at the end."""
        if self.signal:
            cells = f"stopped and saved with {len(self.result.cells)} cells done; resume with:"
            return [cells, resume_command(self.folder)]
        return [f"results: {self.folder.results}", f"figure: {self.folder.figure}"]


def paper(
    experiment: str,
    *,
    scale: str = "tiny",
    data: str | Path = "",
    root: str | Path = "",
    jobs: int = 0,
    out: str | Path = "",
    resume: bool = False,
) -> PaperRun:
    """Run a table or figure of the paper: `vitral.paper("table8", scale="tiny", jobs=2)`.

    The data is by default that of the scale: the bundled images for `tiny`, CIFAR-10 or else Fashion-MNIST for `small`.
    `jobs` runs are trained at once, by default one per core. With `resume` the experiment in the folder `out` goes on,
    and ends in the same numbers.
    """
    chosen = check_scale(scale)
    found = get_experiment(experiment)
    folder = ExperimentFolder(Path(out).expanduser() if str(out) else default_path(experiment, scale))
    where = os.path.abspath(data) if str(data) and Path(data).expanduser().exists() else str(data)
    request = Request(name=experiment, scale=chosen, data=where, root=str(root))
    if resume:
        request = resumed_request(folder, request)
    plan = make_plan(found, request)
    if not resume:
        threads = max(1, cpu_count() // (jobs or cpu_count()))
        request = request.model_copy(update={"threads": threads})
        folder = create_experiment(folder.path, request)
        log.info(f"{found.title}: {sum(map(plan.runs_of, plan.arms))} runs in {folder.path}")
    with Lock(folder.path):
        return run_plan(plan, folder, request, jobs)


def check_scale(scale: str) -> Scale:
    """The scale of that name."""
    for known in SCALES:
        if scale == known:
            return known
    message = f"expected {format_choices(SCALES)}, got {scale!r}"
    raise ConfigError(message, code="config.unknown_name", where="--scale", hint="use one of them")


def resumed_request(folder: ExperimentFolder, request: Request) -> Request:
    """What the experiment in a folder was asked for; nothing else may be asked for now."""
    stored = folder.read_request()
    given = {name: value for name, value in request if value and name not in {"format", "threads"}}
    if wrong := [name for name, value in given.items() if getattr(stored, name) != value]:
        message = f"was started with {', '.join(f'{name} {getattr(stored, name)!r}' for name in wrong)}"
        hint = "leave them out, or name the folder of the other experiment with --out"
        raise ConfigError(message, code="config.conflict", where=folder.path, hint=hint)
    return stored


def make_plan(experiment: Experiment, request: Request) -> Plan:
    """The plan of what was asked for."""
    if read_world(os.environ).size > 1:
        message, hint = "runs in one process, which starts others", "start it without torchrun"
        raise ConfigError(message, code="config.unsupported", where="paper", hint=hint)
    if request.scale == "full" and experiment.trained and not request.data:
        message = "the original data is not on this machine"
        hint = "see the plan and its cost with --plan, or pass your own copy of the data: --data imagenet/"
        raise ConfigError(message, code="config.missing_value", where="--data", hint=hint)
    return plan_experiment(experiment, request.scale, request.data, request.root)


def plan_paper(experiment: str, scale: str, data: str = "", root: str = "") -> PlanSummary:
    """What an experiment would train and what that would cost; at the scale `full` without its data."""
    return summarize_plan(experiment, plan_experiment(get_experiment(experiment), check_scale(scale), data, root))


def run_plan(plan: Plan, folder: ExperimentFolder, request: Request, jobs: int) -> PaperRun:
    """Train, measure, and write the results."""
    runner = Runner(plan, folder, request, jobs)
    try:
        result = runner.run()
    except Stopped as stopped:
        return PaperRun(folder, runner.result(), stopped.signal)
    except KeyboardInterrupt:
        log.error(f"stopped; resume with:\n{resume_command(folder)}")
        raise
    write_file_atomically(folder.results, result.to_json() + "\n")
    write_file_atomically(folder.table, f"{result}\n")
    write_file_atomically(folder.figure, to_png(draw_result(plan.experiment, result)))
    return PaperRun(folder, result)


def resume_command(folder: ExperimentFolder) -> str:
    """The command that goes on with an experiment."""
    request = folder.read_request()
    out = "" if folder.path == default_path(request.name, request.scale) else f" --out {shlex.quote(str(folder.path))}"
    return f"vitral paper {request.name} --scale {request.scale} --resume{out}"
