"""The verb demo."""

from typing import Annotated

import typer

from vitral.cli.app import app
from vitral.cli.train import show_run


@app.command()
def demo(
    out: Annotated[str, typer.Option(metavar="FOLDER", help="New run folder; default runs/sample.")] = "",
) -> None:
    """Train on the bundled images for about a minute, and show some predictions."""
    from vitral.core.machine import keep_freed_memory
    from vitral.runs.demo import format_demo, run_demo

    keep_freed_memory()
    run = run_demo(out)
    if run.signal:
        show_run(run)
    typer.echo(format_demo(run))
