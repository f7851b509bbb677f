"""`vitral train`."""

import logging
import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.app import DATA_HELP, DEVICE_HELP, Root, Settings, complete_data, verb
from vitral.cli.terminal.completion import (
    DEVICES,
    MODELS,
    RECIPES,
    TASKS,
    complete_from,
    complete_name_or_path,
    complete_weights,
)
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.runs.train import Run

log = logging.getLogger("vitral")

RECIPE_HELP = f"A recipe: a JSON or YAML file, or one of {', '.join(RECIPES)}."
MODEL_HELP = "A model: a name such as S/16, or a JSON or YAML file of its config."
WEIGHTS_HELP = (
    "Weights to fine-tune: a run, a bundle, a checkpoint of another library, a short name such as dinov2-small "
    "(see vitral models), or hf:owner/name."
)
ARCH_HELP = "The architecture of a weight file by its name in timm, such as vit_base_patch16_224."
KEY_HELP = "The set of weights to read, in a file with several, such as state_dict_ema."
SIZE_HELP = "Image size in pixels: 64, or 224x320 (height x width)."
TASK_HELP = "What to train for: classify, or masked_patches, which needs no labels."
WORKERS_HELP = "Processes that decode images, or auto, which is 0 on a CPU."
TIME_HELP = "Train for as many steps as fit into this time: 90s, 10m or 1h30m."
OF_RECIPE = "that of the recipe"
AUTO_RESUME_HELP = "Resume the run in --out if there is one, else start it there: for jobs that may be restarted."
TRACKER_HELP = (
    "Send metrics to tensorboard, wandb or mlflow; repeatable. TensorBoard only writes files to the run folder. "
    "Example: --tracker wandb."
)
PRINT_HELP = "Print the complete recipe as YAML, which --recipe takes, and train nothing."


@verb(
    "vitral train photos/",
    "vitral train photos/ --weights dinov2-small --epochs 10",
    "vitral train photos/ --model S/16 --set optimizer.weight_decay=0.1",
    "vitral train --resume runs/photos",
)
def train(  # noqa: PLR0913, PLR0917, one parameter per option
    set_: Settings,
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=complete_data)] = "",
    resume: Annotated[
        str, typer.Option(metavar="RUN", help="Resume a run; takes only --tracker.", show_default="a new run")
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help=RECIPE_HELP,
            show_default="chosen by the data",
            autocompletion=complete_name_or_path(RECIPES),
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help=MODEL_HELP,
            show_default="that of the weights or the recipe",
            autocompletion=complete_name_or_path(MODELS),
        ),
    ] = "",
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            "--from",
            metavar="WEIGHTS",
            help=WEIGHTS_HELP,
            show_default="random weights",
            autocompletion=complete_weights,
        ),
    ] = "",
    arch: Annotated[str, typer.Option(metavar="NAME", help=ARCH_HELP, show_default="by the tensors")] = "",
    weights_key: Annotated[str, typer.Option(metavar="KEY", help=KEY_HELP, show_default="the only one")] = "",
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read weights from a .pt or .pth (weights only).")
    ] = False,
    image_size: Annotated[
        str, typer.Option(metavar="SIZE", help=SIZE_HELP, show_default="that of the recipe or the weights")
    ] = "",
    epochs: Annotated[
        float | None, typer.Option(metavar="N", help="Epochs, such as 20 or 0.5.", show_default=OF_RECIPE)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Images per step, over all processes.", show_default=OF_RECIPE)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(metavar="RATE", help="Peak learning rate, such as 3e-4.", show_default=OF_RECIPE)
    ] = None,
    task: Annotated[
        str,
        typer.Option(metavar="KIND", help=TASK_HELP, show_default=OF_RECIPE, autocompletion=complete_from(TASKS)),
    ] = "",
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed.", show_default=OF_RECIPE)] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help=DEVICE_HELP,
            show_default="auto",
            autocompletion=complete_from(DEVICES),
        ),
    ] = "",
    workers: Annotated[str, typer.Option(metavar="N", help=WORKERS_HELP, show_default="auto")] = "",
    out: Annotated[str, typer.Option(metavar="FOLDER", help="New run folder.", show_default="runs/NAME")] = "",
    auto_resume: Annotated[bool, typer.Option("--auto-resume", help=AUTO_RESUME_HELP)] = False,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help=TIME_HELP, show_default="the epochs of the recipe")
    ] = "",
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=TRACKER_HELP,
            show_default="tensorboard, where it is installed",
            autocompletion=complete_from(("tensorboard", "wandb", "mlflow")),
        ),
    ] = None,
    print_recipe: Annotated[bool, typer.Option("--print-recipe", help=PRINT_HELP)] = False,
    root: Root = "",
) -> None:
    """Train or fine-tune a model, and write a run folder with a report.

    Options that are not given have the value of the recipe. Ctrl-C or SIGTERM saves a checkpoint after the current step
    and prints the command that resumes the run.
    """
    from vitral.core.config import parse_settings
    from vitral.core.machine import keep_freed_memory
    from vitral.runs.callbacks.events import EventDispatcher
    from vitral.runs.callbacks.trackers import open_trackers
    from vitral.runs.folder import is_run
    from vitral.runs.request import RunRequest, resolve
    from vitral.runs.train import resume as resume_run
    from vitral.runs.train import train_request

    options = {"weights": weights, "image_size": image_size, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    options |= {"task": task, "seed": seed, "device": device, "root": root}
    options |= {"arch": arch, "weights_key": weights_key, "allow_pickle": allow_pickle or None}
    options |= {"workers": int(workers) if workers.isdecimal() else workers}
    settings = {name: value for name, value in options.items() if value not in {"", None}} | parse_settings(set_)
    if auto_resume and not out:
        hint = "name the run folder: --out FOLDER --auto-resume"
        raise ConfigError("needs --out", code="config.missing_value", where="--auto-resume", hint=hint)
    keep_freed_memory()
    if resume:
        others = {"DATA": data, "recipe": recipe, "model": model, "out": out, "time-limit": time_limit} | settings
        if given := [name for name, value in others.items() if value]:
            message = f"takes only --tracker, since a run continues as it started; got {', '.join(given)}"
            hint = f"vitral train --resume {shlex.quote(resume)}"
            raise ConfigError(message, code="config.conflict", where="--resume", hint=hint)
        show_run(resume_run(resume, tracker=tracker or ()))
    elif auto_resume and is_run(out):
        show_run(resume_run(out, tracker=tracker or ()))
    else:
        request = RunRequest(data, None, recipe, model, settings)
        if print_recipe:
            typer.echo(resolve(request).recipe.to_yaml(), nl=False)
        else:
            events = EventDispatcher(trackers=open_trackers(tracker or ()))
            show_run(train_request(request, out, time_limit, events))


def show_run(run: "Run") -> None:
    """Log the summary and print the folder; a run stopped by a signal exits with 128 plus its number."""
    if not int(os.environ.get("RANK", "0")):  # only the main process
        for line in run.summary():
            log.log(logging.ERROR if run.signal else logging.INFO, line)  # shown with --quiet, too
        typer.echo(run.folder.path)
    if run.signal:
        raise typer.Exit(128 + run.signal)
