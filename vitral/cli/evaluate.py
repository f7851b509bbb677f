"""`vitral evaluate`."""

import logging
from typing import Annotated, Any

import typer

from vitral.cli.app import Data, Root, app, progress_bar

log = logging.getLogger("vitral")

WITH_HELP = "Evaluators, separated by commas: accuracy, knn, fewshot, linear, resolution, tokens."


@app.command()
def evaluate(  # noqa: PLR0913, PLR0917, one option per setting
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a bundle, or weights of another library.")],
    data: Data,
    with_: Annotated[str, typer.Option("--with", metavar="NAMES", help=WITH_HELP)] = "accuracy",
    split: Annotated[
        str, typer.Option(metavar="NAME", help="test or val. Default: test, or val where there is no test.")
    ] = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all classes and the confusion matrix.")
    ] = False,
    root: Root = "",
    batch_size: Annotated[str, typer.Option(metavar="N", help="Images per batch. Default: 64.")] = "",
    workers: Annotated[str, typer.Option(metavar="N", help="Processes that read images. Default: auto.")] = "",
    device: Annotated[str, typer.Option(metavar="KIND", help="cpu, cuda, mps or auto. Default: auto.")] = "",
    seed: Annotated[str, typer.Option(metavar="N", help="Random seed of folds and few-shot draws. Default: 0.")] = "",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not cache features on disk.")] = False,
) -> None:
    """Evaluate a model: accuracy, features, other image sizes, token merging.

    Features are cached in the user's cache folder for the next evaluation.
    """
    from rich.console import Console

    from vitral.core.config import parse_settings
    from vitral.core.machine import keep_freed_memory
    from vitral.evaluation.results import format_evaluation, print_evaluation
    from vitral.runs.evaluate import evaluate as evaluate_model

    options = {"batch_size": batch_size, "workers": workers, "device": device, "seed": seed}
    settings: Any = parse_settings(f"{name}={value}" for name, value in options.items() if value)
    settings |= {"cache": False} if no_cache else {}
    keep_freed_memory()
    evaluation = evaluate_model(model, data, **settings, with_=with_, split=split, root=root, progress=progress_bar)
    for note in evaluation.notes:
        log.info(note)
    if json:
        typer.echo(evaluation.to_json())
    else:
        print_evaluation(format_evaluation(evaluation), Console())
