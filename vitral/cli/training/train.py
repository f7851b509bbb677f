"""`vitral train`."""

import logging
import os
import shlex
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import complete_from
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.runs.train import Run

log = logging.getLogger("vitral")

RESUME_HELP = "Resume a run. Of the other options, only --tracker and --data can be given with it."
MOVED_HELP = "With --resume: the new path of data that was moved; its names and contents are compared."
PICKLE_HELP = "Read weights from a .pt or .pth (weights only)."
TIME_HELP = "Train for as many steps as fit into this time, counted from the start: 90s, 10m or 1h30m."
AUTO_RESUME_HELP = "Start the run in --out, resume it there, or exit with 0 if it is finished: for jobs that restart."
TRACKER_HELP = (
    "Send metrics to tensorboard, wandb or mlflow; repeatable. TensorBoard only writes files to the run folder. "
    "Example: --tracker wandb."
)
TRACKERS = ("tensorboard", "wandb", "mlflow")
TRACKER_DEFAULT = "tensorboard, where it is installed"
PRINT_HELP = "Print the complete recipe as YAML, which --recipe takes, and train nothing."


@verb(
    "vitral train photos/",
    "vitral train photos/ --weights dinov2-small --epochs 10",
    "vitral train photos/ --model S/16 --set optimizer.weight_decay=0.1",
    "vitral train --resume runs/photos",
)
def train(  # noqa: PLR0913, PLR0917, one parameter per option
    set_: options.Settings,
    data: options.Data = "",
    resume: Annotated[str, option("RUN", RESUME_HELP, "a new run")] = "",
    moved: Annotated[str, option("PATH", MOVED_HELP, "where it was", None, "--data")] = "",
    recipe: options.Recipe = "",
    model: options.RunModel = "",
    weights: options.Weights = "",
    arch: options.Architecture = "",
    weights_key: options.WeightsKey = "",
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help=PICKLE_HELP)] = False,
    image_size: options.ImageSize = "",
    epochs: Annotated[float | None, option("N", "Epochs, such as 20 or 0.5.", options.OF_RECIPE)] = None,
    batch_size: Annotated[int | None, option("N", "Images per step, over all processes.", options.OF_RECIPE)] = None,
    lr: Annotated[float | None, option("RATE", "Peak learning rate, such as 3e-4.", options.OF_RECIPE)] = None,
    task: options.Task = "",
    seed: Annotated[int | None, option("N", "Random seed.", options.OF_RECIPE)] = None,
    device: options.Device = "",
    workers: options.Workers = "",
    out: Annotated[str, option("FOLDER", "New run folder.", "runs/NAME")] = "",
    auto_resume: Annotated[bool, typer.Option("--auto-resume", help=AUTO_RESUME_HELP)] = False,
    time_limit: Annotated[str, option("TIME", TIME_HELP, "the epochs of the recipe")] = "",
    tracker: Annotated[list[str] | None, option("NAME", TRACKER_HELP, TRACKER_DEFAULT, complete_from(TRACKERS))] = None,
    print_recipe: Annotated[bool, typer.Option("--print-recipe", help=PRINT_HELP)] = False,
    root: options.Root = "",
    lenient: options.Lenient = False,
    max_pixels: options.MaxPixels = None,
) -> None:
    """Train or fine-tune a model, and write a run folder with a report.

    Options that are not given have the value of the recipe. Ctrl-C or SIGTERM saves a checkpoint after the current step
    and prints the command that resumes the run.
    """
    started = monotonic()
    if time_limit:
        log.info(f"time limit {time_limit}: starting")  # before the imports, which take seconds
    from vitral.core.machine import bound_spinning, keep_freed_memory

    bound_spinning()
    from vitral.core.config import parse_settings
    from vitral.runs.callbacks.events import EventDispatcher
    from vitral.runs.callbacks.trackers import open_trackers
    from vitral.runs.folder import is_finished, is_run
    from vitral.runs.request import RunRequest, resolve
    from vitral.runs.train import resume as resume_run
    from vitral.runs.train import train_request

    values = {"weights": weights, "image_size": image_size, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    values |= {"task": task, "seed": seed, "device": device, "root": root}
    values |= {"arch": arch, "weights_key": weights_key, "allow_pickle": allow_pickle or None}
    values |= {"lenient": lenient or None, "max_pixels": max_pixels}
    values |= {"workers": int(workers) if workers.isdecimal() else workers}
    settings = {name: value for name, value in values.items() if value not in {"", None}} | parse_settings(set_)
    if auto_resume and not out:
        hint = "name the run folder: --out FOLDER --auto-resume"
        raise ConfigError("needs --out", code="config.missing_value", where="--auto-resume", hint=hint)
    if moved and not (resume or auto_resume):
        hint = f"vitral train {shlex.quote(moved)}"
        raise ConfigError("is for --resume", code="config.conflict", where="--data", hint=hint)
    keep_freed_memory()
    if resume:
        others = {"DATA": data, "recipe": recipe, "model": model, "out": out, "time-limit": time_limit} | settings
        if given := [name for name, value in others.items() if value]:
            allowed = "can be combined only with --tracker and --data, since a run continues as it started"
            message = f"{allowed}; got {', '.join(given)}"
            hint = f"vitral train --resume {shlex.quote(resume)}"
            raise ConfigError(message, code="config.conflict", where="--resume", hint=hint)
        show_run(resume_run(resume, data=moved or None, tracker=tracker or ()))
    elif auto_resume and is_finished(out):
        show_finished(out)
    elif auto_resume and is_run(out):
        show_run(resume_run(out, data=moved or None, tracker=tracker or ()))
    else:
        request = RunRequest(data, None, recipe, model, settings)
        if print_recipe:
            echo(resolve(request).recipe.to_yaml(), nl=False)
        else:
            events = EventDispatcher(trackers=open_trackers(tracker or ()))
            show_run(train_request(request, out, time_limit, events, started))


def show_finished(out: str) -> None:
    """Log that there is nothing left to do, and print the folder."""
    if is_main_process():
        log.info("the run is finished")
        echo(os.path.expanduser(out))


def is_main_process() -> bool:
    """Whether this process logs and prints, of those that torchrun started."""
    return not int(os.environ.get("RANK", "0"))


def show_run(run: "Run") -> None:
    """Log the summary and print the folder; a run stopped by a signal exits with 128 plus its number."""
    if is_main_process():
        for line in run.summary():
            log.log(logging.ERROR if run.signal else logging.INFO, line)  # shown with --quiet, too
        echo(run.folder.path)
    if run.signal:
        raise typer.Exit(128 + run.signal)
