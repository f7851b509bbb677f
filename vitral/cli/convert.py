"""`vitral convert`: weights from one library to another."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import app, parse_numbers

log = logging.getLogger("vitral")
SET_HELP = "A setting that the checkpoint does not record, such as mixer.heads=6 or image_size=224x320; repeatable."
TO_HELP = "Target library: vitral, google, timm, huggingface, torchvision or vit-pytorch."


@app.command()
def convert(  # noqa: PLR0913, PLR0917, one parameter per option
    source: Annotated[str, typer.Argument(metavar="FROM", help="A run, a bundle, or weights of another library.")],
    out: Annotated[str, typer.Argument(metavar="TO", help="The new folder.")],
    set_: Annotated[
        list[str], typer.Option("--set", metavar="A.B=C", help=SET_HELP, default_factory=list, show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", metavar="LIBRARY", help=TO_HELP)] = "vitral",
    image_size: Annotated[
        str, typer.Option(metavar="SIZE", help="New image size, such as 384; resamples positions.")
    ] = "",
    channels: Annotated[
        int | None, typer.Option(metavar="N", help="New number of channels; adapts the first layer.")
    ] = None,
    layers: Annotated[str, typer.Option(metavar="0,2,4", help="Keep only these layers, counted from 0.")] = "",
    format: Annotated[str, typer.Option(metavar="NAME", help="Format of FROM, if its tensor names fit several.")] = "",
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a .pt or .pth (weights only).")] = False,
) -> None:
    """Convert weights between libraries, with a certificate that the outputs agree."""
    from vitral.core.config import parse_settings
    from vitral.weights.convert import convert as convert_weights

    indices = tuple(parse_numbers(layers, "--layers", least=0)) if layers else ()
    result = convert_weights(
        source,
        out,
        to=to,
        layers=indices,
        image_size=image_size or None,
        channels=channels,
        settings=parse_settings(set_),
        format=format,
        allow_pickle=allow_pickle,
    )
    for line in (*result.messages, *result.certificate.lines()):
        log.info(line)
    typer.echo(result.folder)
