"""`vitral check`."""

from pathlib import Path
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import DataError

HTML_HELP = "Also write a page, such as check.html, that shows the images with problems."


@verb("vitral check photos/", "vitral check photos/ --html check.html", "vitral check photos/ --weights dinov2-small")
def check(  # noqa: PLR0913, PLR0917, one parameter per option
    data: options.Data,
    workers: Annotated[int, option("N", "Processes that read files.", min=0, **options.PER_CORE)],
    set_: options.Settings,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with all examples of each problem.")] = False,
    html: Annotated[str, option("FILE", HTML_HELP, "no page")] = "",
    recipe: options.Recipe = "",
    model: options.RunModel = "",
    weights: options.Weights = "",
    image_size: options.ImageSize = "",
    task: options.Task = "",
    root: options.Root = "",
    lenient: options.Lenient = False,
    max_pixels: options.MaxPixels = None,
    isolate: options.Isolate = False,
) -> None:
    """Find damaged files, duplicates, leaks and wrong labels.

    All problems are listed, worst first, with the training that vitral train would run on the data with the same
    options. The exit code is 3 if there are errors: a structural fault such as an empty class, an unreadable file, or
    an image in two splits or with two labels. It is 0 for warnings and notes.
    """
    from json import dumps

    from rich.console import Console

    from vitral.core.config import parse_settings
    from vitral.data.decoding.isolation import Isolation
    from vitral.data.doctor.diagnosis import diagnosis_to_dict
    from vitral.data.doctor.report import format_report, print_report, write_page
    from vitral.runs.preflight import check_request
    from vitral.runs.request import RunRequest

    given: dict[str, object] = {"root": root, "weights": weights, "image_size": image_size, "task": task}
    given |= {"lenient": lenient, "max_pixels": max_pixels}
    settings = {name: value for name, value in given.items() if value} | parse_settings(set_)
    isolation = Isolation(processes=max(workers, 1)) if isolate else None
    diagnosis = check_request(RunRequest(data, None, recipe, model, settings), workers, isolation)
    if json:
        echo(dumps(diagnosis_to_dict(diagnosis), indent=2))
    else:
        print_report(format_report(diagnosis), Console())
    if html:  # last, so that the report is printed even if the page cannot be written
        write_page(Path(html).expanduser(), diagnosis)
    if diagnosis.count("error"):
        raise typer.Exit(DataError.exit_code)
