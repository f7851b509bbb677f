"""The verbs of models: describe."""

from typing import Annotated

import typer

from vitral.cli.options import Settings
from vitral.cli.program import app


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model of the paper, such as B/16 or R50+L/32.")],
    set_: Settings,
    image: Annotated[str, typer.Option(metavar="SIZE", help="The size of the images: 384 or 224x320.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Show every shape, parameter, multiply-add and byte of a model."""
    from vitral.explain.describe import describe as described

    size = [f"image={image}"] if image else []
    description = described(name, *size, *set_)
    typer.echo(description.to_json() if json else description)
