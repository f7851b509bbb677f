"""`vitral check`."""

from pathlib import Path
from typing import Annotated

import typer

from vitral.cli.app import Data, Root, Settings, verb
from vitral.cli.terminal.completion import (
    MODELS,
    RECIPES,
    TASKS,
    complete_from,
    complete_name_or_path,
    complete_weights,
)
from vitral.core.errors import DataError
from vitral.core.machine import cpu_count

HTML_HELP = "Also write a page that shows the images with problems, such as check.html."
RECIPE_HELP = "The recipe of the training: a name, or a JSON or YAML file."
MODEL_HELP = "The model of the training: a name such as S/16, or a JSON or YAML file."
WEIGHTS_HELP = "The weights of the training, such as dinov2-small."
SIZE_HELP = "The image size of the training, such as 64."
TASK_HELP = "The task of the training: classify, or masked_patches, which needs no labels."


@verb("vitral check photos/", "vitral check photos/ --html check.html", "vitral check photos/ --weights dinov2-small")
def check(  # noqa: PLR0913, PLR0917, one parameter per option
    data: Data,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Processes that read files.",
            min=0,
            default_factory=cpu_count,
            show_default="one per core",
        ),
    ],
    set_: Settings,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with all examples of each problem.")] = False,
    html: Annotated[str, typer.Option(metavar="FILE", help=HTML_HELP, show_default="no page")] = "",
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
    image_size: Annotated[
        str, typer.Option(metavar="SIZE", help=SIZE_HELP, show_default="that of the recipe or the weights")
    ] = "",
    task: Annotated[
        str,
        typer.Option(
            metavar="KIND", help=TASK_HELP, show_default="that of the recipe", autocompletion=complete_from(TASKS)
        ),
    ] = "",
    root: Root = "",
) -> None:
    """Find damaged files, duplicates, leaks and wrong labels.

    All problems are listed, worst first, with the training that vitral train would run on the data with the same
    options. The exit code is 3 if there are errors: a structural fault such as an empty class, an unreadable file, or
    an image in two splits or with two labels. It is 0 for warnings and notes.
    """
    from json import dumps

    from rich.console import Console

    from vitral.core.config import parse_settings
    from vitral.data.doctor.diagnosis import diagnosis_to_dict
    from vitral.data.doctor.report import format_report, print_report, write_page
    from vitral.runs.preflight import check_request
    from vitral.runs.request import RunRequest

    options = {"root": root, "weights": weights, "image_size": image_size, "task": task}
    settings = {name: value for name, value in options.items() if value} | parse_settings(set_)
    diagnosis = check_request(RunRequest(data, None, recipe, model, settings), workers)
    if json:
        typer.echo(dumps(diagnosis_to_dict(diagnosis), indent=2))
    else:
        print_report(format_report(diagnosis), Console())
    if html:  # last, so that the report is printed even if the page cannot be written
        write_page(Path(html).expanduser(), diagnosis)
    if diagnosis.count("error"):
        raise typer.Exit(DataError.exit_code)
