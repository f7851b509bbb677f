"""The verb demo."""

from typing import Annotated

import typer

from vitral.cli.app import app
from vitral.cli.train import show_run


@app.command()
def demo(
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The new run folder; by itself runs/sample.")] = "",
) -> None:
    """Train on the bundled images, and show what comes of it."""
    from vitral.runs.demo import demo as trained
    from vitral.runs.demo import told

    run = trained(out)
    if run.signal:
        show_run(run)
    typer.echo(told(run))
