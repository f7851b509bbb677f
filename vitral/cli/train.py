"""The verb train."""

import logging
import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.app import app
from vitral.cli.options import DATA_HELP, Root, Settings
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.runs.result import Run

log = logging.getLogger("vitral")

RECIPE_HELP = (
    "A recipe; by itself one is chosen by the data. There are sample, fashion_mnist, fashion_masked, fashion_finetune, "
    "fashion_tenth, cifar10, small_hundreds, small_thousands, paper_imagenet, paper_imagenet21k, paper_jft, "
    "paper_masked, finetune_imagenet, finetune_cifar, finetune_flowers, finetune_vtab, photos, augreg_imagenet, "
    "augreg_imagenet21k, plain_imagenet."
)

WEIGHTS_HELP = "What to start from: a run, a bundle, weights of another library, or hf:owner/name."


@app.command()
def train(  # noqa: PLR0913, PLR0917, one option a wish
    set_: Settings,
    data: Annotated[str, typer.Argument(metavar="[DATA]", help=DATA_HELP)] = "",
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with a run that was stopped.")] = "",
    recipe: Annotated[str, typer.Option(metavar="NAME", help=RECIPE_HELP)] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="A model of the paper, such as S/16.")] = "",
    weights: Annotated[str, typer.Option("--weights", "--from", metavar="WEIGHTS", help=WEIGHTS_HELP)] = "",
    image_size: Annotated[str, typer.Option(metavar="SIZE", help="The size of the images: 64 or 224x320.")] = "",
    epochs: Annotated[str, typer.Option(metavar="N", help="How many times over the images.")] = "",
    batch_size: Annotated[str, typer.Option(metavar="N", help="Images a step, of all processes together.")] = "",
    lr: Annotated[str, typer.Option(metavar="RATE", help="The rate of learning at its peak.")] = "",
    task: Annotated[str, typer.Option(metavar="KIND", help="classify, or masked_patches, which needs no labels.")] = "",
    seed: Annotated[str, typer.Option(metavar="N", help="Another seed is another run.")] = "",
    device: Annotated[str, typer.Option(metavar="KIND", help="cpu, cuda, mps or auto.")] = "",
    workers: Annotated[str, typer.Option(metavar="N", help="Processes that read images.")] = "",
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The new run folder; by itself runs/NAME.")] = "",
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Plan for so much time: 90s, 10m, 1h30m.")] = "",
    root: Root = "",
) -> None:
    """Train or fine-tune a model on a folder of images, and write a run folder with a report.

    Ctrl-C, or a SIGTERM, saves after the step at hand and prints the line that goes on.
    """
    from vitral.runs.train import resume as resumed
    from vitral.runs.train import train as trained

    words = {"weights": weights, "image_size": image_size, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    words |= {"task": task, "seed": seed, "device": device, "workers": workers}
    settings = [f"{name}={value}" for name, value in words.items() if value]
    words |= {"DATA": data, "recipe": recipe, "model": model, "out": out, "time-limit": time_limit, "root": root}
    others = [*(name for name, value in words.items() if value), *(["set"] if set_ else [])]
    if resume:
        if others:
            message = f"a run goes on as it began, so --resume stands alone; got {', '.join(others)} too"
            hint = f"vitral train --resume {shlex.quote(resume)}"
            raise ConfigError(message, code="config.conflict", where="--resume", hint=hint)
        show_run(resumed(resume))
        return
    if not data:
        hint = "give a folder of images, or sample"
        raise ConfigError("no data is named", code="config.missing_value", where="DATA", hint=hint)
    settings += set_
    show_run(trained(data, *settings, recipe=recipe, model=model, root=root, out=out, time_limit=time_limit))


def show_run(run: "Run") -> None:
    """One summary, the folder on stdout; a run that a signal stopped ends with that signal's code."""
    if not int(os.environ.get("RANK", "0")):  # of many processes one speaks for all
        for line in run.summary():
            log.log(logging.ERROR if run.signal else logging.INFO, line)  # --quiet hides no way to go on
        typer.echo(run.folder.path)
    if run.signal:
        raise typer.Exit(128 + run.signal)
