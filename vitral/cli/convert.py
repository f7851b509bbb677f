"""`vitral convert`: weights from one library to another."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import MODEL_HELP, parse_numbers, verb
from vitral.cli.terminal.completion import LIBRARIES, complete_from, complete_weights
from vitral.core.errors import format_choices

log = logging.getLogger("vitral")
SET_HELP = "A setting that the checkpoint does not record, such as mixer.heads=6 or image_size=224x320; repeatable."
TO_HELP = f"The library to write for: {format_choices(LIBRARIES)}."
SIZE_HELP = "Resample the positions for images of this size: 384, or 224x320 (height x width)."
CHANNELS_HELP = "Adapt the first layer to this number of channels, such as 1 for grayscale."
LAYERS_HELP = "Keep only these layers, counted from 0, such as 0,2,4."
ARCH_HELP = (
    "The architecture of FROM by its name in timm, such as vit_base_patch16_224: for a file without config.json."
)
KEY_HELP = "The set of weights to read, in a file with several, such as state_dict_ema."
FORMAT_HELP = "The format of FROM, needed only if its tensor names fit several formats."


@verb(
    "vitral convert timm.safetensors models/b16",
    "vitral convert runs/photos photos-hf --to huggingface",
    "vitral convert models/b16 models/b16-384 --image-size 384",
)
def convert(  # noqa: PLR0913, PLR0917, one parameter per option
    source: Annotated[str, typer.Argument(metavar="FROM", help=MODEL_HELP, autocompletion=complete_weights)],
    out: Annotated[str, typer.Argument(metavar="TO", help="The folder to create.")],
    set_: Annotated[
        list[str], typer.Option("--set", metavar="A.B=C", help=SET_HELP, default_factory=list, show_default="none")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="LIBRARY", help=TO_HELP, autocompletion=complete_from(LIBRARIES))
    ] = "vitral",
    image_size: Annotated[str, typer.Option(metavar="SIZE", help=SIZE_HELP, show_default="unchanged")] = "",
    channels: Annotated[
        int | None, typer.Option(metavar="N", min=1, help=CHANNELS_HELP, show_default="unchanged")
    ] = None,
    layers: Annotated[str, typer.Option(metavar="N,M", help=LAYERS_HELP, show_default="all")] = "",
    format: Annotated[str, typer.Option(metavar="NAME", help=FORMAT_HELP, show_default="by the tensor names")] = "",
    arch: Annotated[str, typer.Option(metavar="NAME", help=ARCH_HELP, show_default="by the tensors")] = "",
    weights_key: Annotated[str, typer.Option(metavar="KEY", help=KEY_HELP, show_default="the only one")] = "",
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a .pt or .pth (weights only).")] = False,
) -> None:
    """Convert weights between libraries, and verify the outputs.

    A certificate in the new folder says how closely the outputs agree.
    """
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
        arch=arch,
        weights_key=weights_key,
        allow_pickle=allow_pickle,
    )
    for line in (*result.messages, *result.certificate.lines()):
        log.info(line)
    typer.echo(result.folder)
