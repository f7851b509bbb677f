"""`vitral convert`: weights from one library to another."""

import logging
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import parse_numbers, verb
from vitral.cli.terminal.completion import LIBRARIES, complete_from, complete_weights
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError, format_choices

log = logging.getLogger("vitral")
SET_HELP = "A setting that the checkpoint does not record, such as mixer.heads=6 or image_size=224x320; repeatable."
TO_HELP = f"The library to write for: {format_choices(LIBRARIES)}."
SIZE_HELP = "Resample the positions for images of this size: 384, or 224x320 (height x width)."
CHANNELS_HELP = "Adapt the first layer to this number of channels, such as 1 for grayscale."
PATCH_HELP = "Resize the patch embedding by the pseudo-inverse to patches of this size: 8, or 8x16 (height x width)."
LAYERS_HELP = "Keep only these layers, counted from 0, such as 0,2,4."
ARCH_HELP = (
    "The architecture of FROM by its name in timm, such as vit_base_patch16_224: for a file without config.json."
)
PUSH_HELP = "Upload the new folder to this repository of the Hugging Face hub, such as hf:owner/name."
PRIVATE_HELP = "Create the repository of --push as a private one."
VERIFY_HELP = "Refuse if the library that wrote FROM is not installed here and cannot confirm the outputs."
MAP_HELP = "Rules for a layout that is not known: a YAML or JSON file that gives Vitral's names for those of FROM."
MAP_MODEL_HELP = "The model of --map, if its file has none: a name such as S/16, or a JSON or YAML file of its config."
FORMAT_HELP = "The format of FROM, needed only if its tensor names fit several formats."


@verb(
    "vitral convert timm.safetensors models/b16",
    "vitral convert runs/photos photos-hf --to huggingface",
    "vitral convert models/b16 models/b16-384 --image-size 384",
    "vitral convert theirs.safetensors models/theirs --map rules.yaml",
    "vitral convert runs/photos photos-hf --to huggingface --push hf:owner/photos",
)
def convert(  # noqa: PLR0913, PLR0917, one parameter per option
    source: Annotated[str, typer.Argument(metavar="FROM", help=options.MODEL_HELP, autocompletion=complete_weights)],
    out: Annotated[str, typer.Argument(metavar="TO", help="The folder to create.")],
    set_: Annotated[list[str], options.settings_option(SET_HELP)],
    to: Annotated[str, option("LIBRARY", TO_HELP, complete=complete_from(LIBRARIES))] = "vitral",
    image_size: Annotated[str, option("SIZE", SIZE_HELP, "unchanged")] = "",
    channels: Annotated[int | None, option("N", CHANNELS_HELP, "unchanged", min=1)] = None,
    patch: Annotated[str, option("SIZE", PATCH_HELP, "unchanged")] = "",
    layers: Annotated[str, option("N,M", LAYERS_HELP, "all")] = "",
    format: Annotated[str, option("NAME", FORMAT_HELP, "by the tensor names")] = "",
    arch: Annotated[str, option("NAME", ARCH_HELP, "by the tensors")] = "",
    map_: Annotated[str, option("FILE", MAP_HELP, "none", None, "--map")] = "",
    model: Annotated[str, option("NAME|FILE", MAP_MODEL_HELP, "that of the rules")] = "",
    weights_key: options.WeightsKey = "",
    verify: Annotated[bool, typer.Option("--verify", help=VERIFY_HELP)] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a .pt or .pth (weights only).")] = False,
    push: Annotated[str, option("REPOSITORY", PUSH_HELP, "not uploaded")] = "",
    private: Annotated[bool, typer.Option("--private", help=PRIVATE_HELP)] = False,
) -> None:
    """Convert weights between libraries, and verify the outputs.

    A certificate in the new folder says how closely the outputs agree.
    """
    if push:
        from vitral.weights.hub import check_push, push_to_hub

        check_push(push)  # before the work
    elif private:
        message, hint = "there is no upload that could be private", "add --push hf:owner/name"
        raise ConfigError(message, code="config.conflict", where="--private", hint=hint)
    if model and not map_:
        message, hint = "is the model of --map, which is not given", "add --map rules.yaml, or leave it out"
        raise ConfigError(message, code="config.conflict", where="--model", hint=hint)
    from vitral.core.config import parse_settings
    from vitral.weights.convert import convert as convert_weights
    from vitral.weights.formats.mapping import read_map

    indices = tuple(parse_numbers(layers, "--layers", least=0)) if layers else ()
    result = convert_weights(
        source,
        out,
        to=to,
        verify=verify,
        layers=indices,
        image_size=image_size or None,
        channels=channels,
        patch=patch or None,
        settings=parse_settings(set_),
        format=format,
        arch=arch,
        weights_key=weights_key,
        allow_pickle=allow_pickle,
        map=read_map(map_, model) if map_ else None,
    )
    for line in result.lines():
        log.info(line)
    echo(result.folder)
    if push:
        push_to_hub(result.folder, push, private=private)
