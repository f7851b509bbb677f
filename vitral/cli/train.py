"""`vitral train`."""

import logging
import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.app import DATA_HELP, Root, Settings, app
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.runs.train import Run

log = logging.getLogger("vitral")

RECIPE_HELP = (
    "Recipe: a JSON or YAML file, or a name; default: chosen by the data. Names: sample, fashion_mnist, "
    "fashion_masked, fashion_finetune, fashion_tenth, cifar10, small_hundreds, small_thousands, paper_imagenet, "
    "paper_imagenet21k, paper_jft, paper_masked, finetune_imagenet, finetune_cifar, finetune_flowers, finetune_vtab, "
    "photos, augreg_imagenet, augreg_imagenet21k, plain_imagenet."
)
MODEL_HELP = "Model: a name such as S/16, or a JSON or YAML file; default: that of the weights or the recipe."
WEIGHTS_HELP = (
    "Weights to fine-tune: a run, a bundle, a checkpoint of another library, a short name such as dinov2-small "
    "(see vitral models), or hf:owner/name; default: none, random weights."
)
SIZE_HELP = "Image size in pixels: 64, or 224x320 (height x width); default: that of the recipe or the weights."
BATCH_HELP = "Images per step, over all processes; default: that of the recipe."
TASK_HELP = "classify (default), or masked_patches, which needs no labels."
WORKERS_HELP = "Processes that decode images; default: auto, which is 0 on a CPU."
TIME_HELP = "Train for as many steps as fit into this time: 90s, 10m, 1h30m; default: the length of the recipe."
AUTO_RESUME_HELP = "Resume the run in --out if there is one, else start it there: for jobs that may be restarted."
PRINT_HELP = "Print the complete recipe as YAML, which --recipe takes, and train nothing."


@app.command()
def train(  # noqa: PLR0913, PLR0917, one parameter per option
    set_: Settings,
    data: Annotated[str, typer.Argument(metavar="[DATA]", help=DATA_HELP)] = "",
    resume: Annotated[str, typer.Option(metavar="RUN", help="Resume a run; takes no other options.")] = "",
    recipe: Annotated[str, typer.Option(metavar="NAME|FILE", help=RECIPE_HELP)] = "",
    model: Annotated[str, typer.Option(metavar="NAME|FILE", help=MODEL_HELP)] = "",
    weights: Annotated[str, typer.Option("--weights", "--from", metavar="WEIGHTS", help=WEIGHTS_HELP)] = "",
    image_size: Annotated[str, typer.Option(metavar="SIZE", help=SIZE_HELP)] = "",
    epochs: Annotated[float | None, typer.Option(metavar="N", help="Epochs, such as 20 or 0.5.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help=BATCH_HELP)] = None,
    lr: Annotated[float | None, typer.Option(metavar="RATE", help="Peak learning rate, such as 3e-4.")] = None,
    task: Annotated[str, typer.Option(metavar="KIND", help=TASK_HELP)] = "",
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed; default: 0.")] = None,
    device: Annotated[str, typer.Option(metavar="KIND", help="cpu, cuda, mps or auto (default).")] = "",
    workers: Annotated[str, typer.Option(metavar="N", help=WORKERS_HELP)] = "",
    out: Annotated[str, typer.Option(metavar="FOLDER", help="New run folder; default: runs/NAME.")] = "",
    auto_resume: Annotated[bool, typer.Option("--auto-resume", help=AUTO_RESUME_HELP)] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help=TIME_HELP)] = "",
    print_recipe: Annotated[bool, typer.Option("--print-recipe", help=PRINT_HELP)] = False,
    root: Root = "",
) -> None:
    """Train or fine-tune a model on a folder of images, and write a run folder with a report.

    Options that are not given have the value of the recipe. Ctrl-C or SIGTERM saves a checkpoint after the current step
    and prints the command that resumes the run.
    """
    from vitral.core.config import parse_settings
    from vitral.core.machine import keep_freed_memory
    from vitral.runs.folder import is_run
    from vitral.runs.request import RunRequest, resolve
    from vitral.runs.train import resume as resume_run
    from vitral.runs.train import train_request

    options = {"weights": weights, "image_size": image_size, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    options |= {"task": task, "seed": seed, "device": device, "root": root}
    options |= {"workers": int(workers) if workers.isdecimal() else workers}
    settings = {name: value for name, value in options.items() if value not in {"", None}} | parse_settings(set_)
    if auto_resume and not out:
        hint = "name the run folder: --out FOLDER --auto-resume"
        raise ConfigError("needs --out", code="config.missing_value", where="--auto-resume", hint=hint)
    keep_freed_memory()
    if resume:
        others = {"DATA": data, "recipe": recipe, "model": model, "out": out, "time-limit": time_limit} | settings
        if given := [name for name, value in others.items() if value]:
            message = f"takes no other options, since a run continues as it started; got {', '.join(given)}"
            hint = f"vitral train --resume {shlex.quote(resume)}"
            raise ConfigError(message, code="config.conflict", where="--resume", hint=hint)
        show_run(resume_run(resume))
    elif auto_resume and is_run(out):
        show_run(resume_run(out))
    else:
        request = RunRequest(data, None, recipe, model, settings)
        if print_recipe:
            typer.echo(resolve(request).recipe.to_yaml(), nl=False)
        else:
            show_run(train_request(request, out, time_limit))


def show_run(run: "Run") -> None:
    """Log the summary and print the folder; a run stopped by a signal exits with 128 plus its number."""
    if not int(os.environ.get("RANK", "0")):  # only the main process
        for line in run.summary():
            log.log(logging.ERROR if run.signal else logging.INFO, line)  # shown with --quiet, too
        typer.echo(run.folder.path)
    if run.signal:
        raise typer.Exit(128 + run.signal)
