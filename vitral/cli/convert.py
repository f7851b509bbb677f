"""The verb convert."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import app
from vitral.core.errors import ConfigError

log = logging.getLogger("vitral")
Telling = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Tell what a file does not, such as mixer.heads=6 or image_size=224x320; may be repeated.",
        default_factory=list,
        show_default=False,
    ),
]
TO_HELP = "vitral, google, timm, huggingface, torchvision or vit-pytorch."


@app.command()
def convert(  # noqa: PLR0913, PLR0917, one option a wish
    source: Annotated[str, typer.Argument(metavar="FROM", help="A run, a bundle, or weights of another library.")],
    out: Annotated[str, typer.Argument(metavar="TO", help="The new folder.")],
    set_: Telling,
    to: Annotated[str, typer.Option("--to", metavar="LIBRARY", help=TO_HELP)] = "vitral",
    image_size: Annotated[str, typer.Option(metavar="SIZE", help="Another image size: positions are resampled.")] = "",
    channels: Annotated[str, typer.Option(metavar="N", help="Other channels: the stem is summed or repeated.")] = "",
    layers: Annotated[str, typer.Option(metavar="0,2,4", help="Some of the layers alone, counted from 0.")] = "",
    format: Annotated[str, typer.Option(metavar="NAME", help="What FROM is, where names leave a doubt.")] = "",
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a .pt or .pth, its weights only.")] = False,
) -> None:
    """Convert weights between libraries, with a certificate that both sides answer alike."""
    from vitral.weights.convert import convert as converted

    words = {"image_size": image_size, "channels": channels}
    changes = tuple(f"{name}={value}" for name, value in words.items() if value)
    numbers = tuple(_layer(text) for text in layers.split(",")) if layers else ()
    made = converted(
        source, out, *set_, to=to, layers=numbers, changes=changes, format=format, allow_pickle=allow_pickle
    )
    for line in (*made.told, *made.certificate.lines()):
        log.info(line)
    typer.echo(made.folder)


def _layer(text: str) -> int:
    if not text.strip().isdecimal():
        message = f"expected numbers such as 0,2,4, got {text!r}"
        raise ConfigError(message, code="config.wrong_type", where="--layers")
    return int(text)
