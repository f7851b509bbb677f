"""The verb of evaluation."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import app
from vitral.cli.options import Data, Root, progress_bar

log = logging.getLogger("vitral")

WITH_HELP = "The judges, with commas between them: accuracy, knn, fewshot, linear, resolution, tokens."


@app.command()
def evaluate(  # noqa: PLR0913, PLR0917, one option a wish
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a bundle, or weights of another library.")],
    data: Data,
    with_: Annotated[str, typer.Option("--with", metavar="JUDGES", help=WITH_HELP)] = "accuracy",
    split: Annotated[str, typer.Option(metavar="NAME", help="test or val; by itself test where there is one.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every class and the whole confusion.")] = False,
    root: Root = "",
    batch_size: Annotated[str, typer.Option(metavar="N", help="Images at a time.")] = "",
    workers: Annotated[str, typer.Option(metavar="N", help="Processes that read images.")] = "",
    device: Annotated[str, typer.Option(metavar="KIND", help="cpu, cuda, mps or auto.")] = "",
    seed: Annotated[str, typer.Option(metavar="N", help="Of the folds, and of the draws of fewshot.")] = "",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no features on the disk, and use none.")] = False,
) -> None:
    """Judge a model: its answers, its features, how far images may be stretched and tokens merged.

    Features are kept in the user's cache folder, so that the next judge does not wait for them.
    """
    from rich.console import Console

    from vitral.runs.evaluate import evaluate as evaluated
    from vitral.runs.results import format_evaluation, print_evaluation

    words = {"batch_size": batch_size, "workers": workers, "device": device, "seed": seed}
    settings = [f"{name}={value}" for name, value in words.items() if value]
    settings += ["cache=false"] if no_cache else []
    found = evaluated(model, data, *settings, with_=with_, split=split, root=root, progress=progress_bar)
    for note in found.notes:
        log.info(note)
    if json:
        typer.echo(found.to_json())
    else:
        print_evaluation(format_evaluation(found), Console())
