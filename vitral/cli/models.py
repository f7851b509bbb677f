"""The verbs of models: describe."""

from pathlib import Path
from typing import Annotated

import typer

from vitral.cli.options import Settings
from vitral.cli.program import app


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model such as B/16 or R50+L/32, or weights.")],
    set_: Settings,
    image: Annotated[str, typer.Option(metavar="SIZE", help="The size of the images: 384 or 224x320.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Show every shape, parameter, multiply-add and byte of a model."""
    from vitral.explain.describe import describe as described
    from vitral.model import Resnet, Vit
    from vitral.weights.hub import PREFIX
    from vitral.weights.load import load
    from vitral.weights.opening import READERS

    model: str | Vit | Resnet = name
    if Path(name).expanduser().exists() or name.startswith(PREFIX) or name.endswith(READERS):
        model = load(name).bundle.model
    size = [f"image={image}"] if image else []
    description = described(model, *size, *set_)
    typer.echo(description.to_json() if json else description)
