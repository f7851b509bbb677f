"""`vitral check`."""

from pathlib import Path
from typing import Annotated

import typer

from vitral.cli.app import Data, Root, verb
from vitral.core.errors import DataError
from vitral.core.machine import cpu_count

HTML_HELP = "Also write a page that shows the images with problems, such as check.html."


@verb("vitral check photos/", "vitral check photos/ --html check.html")
def check(
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
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with all examples of each problem.")] = False,
    html: Annotated[str, typer.Option(metavar="FILE", help=HTML_HELP, show_default="no page")] = "",
    root: Root = "",
) -> None:
    """Find damaged files, duplicates, leaks and wrong labels.

    The exit code is 3 if there are errors: an unreadable file, or an image in two splits or with two labels. It is 0
    for warnings and notes.
    """
    from json import dumps

    from rich.console import Console

    from vitral.data.datasets.source import open_data
    from vitral.data.doctor.diagnosis import check as checked
    from vitral.data.doctor.diagnosis import diagnosis_to_dict
    from vitral.data.doctor.report import format_report, print_report, write_page

    diagnosis = checked(open_data(data, root=root), workers)
    if json:
        typer.echo(dumps(diagnosis_to_dict(diagnosis), indent=2))
    else:
        print_report(format_report(diagnosis), Console())
    if html:  # last: if it cannot be written, the report is still printed
        write_page(Path(html).expanduser(), diagnosis)
    if diagnosis.count("error"):
        raise typer.Exit(DataError.exit_code)
