"""`vitral describe`."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import MODELS, complete_name_or_path
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.models import Resnet, Vit

log = logging.getLogger("vitral")

SIZE_HELP = "Image size in pixels: 384, or 224x320 (height x width)."
SET_HELP = "Change the model by the path of a setting, such as position=rope2d or mixer.heads=6; repeatable."
NAME_HELP = "A model such as B/16 or R50+L/32, a JSON or YAML file of its config, or weights."


@verb("vitral describe B/16", "vitral describe S/16 --image-size 384 --set position=rope2d")
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP, autocompletion=complete_name_or_path(MODELS))],
    set_: Annotated[list[str], options.settings_option(SET_HELP)],
    image_size: Annotated[str, option("SIZE", SIZE_HELP, "that of the model")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Show the shapes, parameters, multiply-adds and memory of a model."""
    from vitral.core.config import parse_settings
    from vitral.core.documents import is_document
    from vitral.explanation.walkthrough.describe import describe as described
    from vitral.weights.hub import PREFIX, expand_short_name
    from vitral.weights.load import open_model
    from vitral.weights.reader import READERS

    there = Path(name).expanduser().exists() and not is_document(name)
    is_weights = there or expand_short_name(name).startswith(PREFIX) or name.endswith(READERS)
    opened = open_model(name) if is_weights else None
    for line in opened.messages if opened else ():
        log.info(line)
    size = {"image_size": image_size} if image_size else {}
    description = described(opened.loaded.bundle.model if opened else _named(name), size | parse_settings(set_))
    if opened:
        description = description.model_copy(update={"files": opened.files})
    echo(description.to_json() if json else description)


def _named(name: str) -> "Vit | Resnet":
    """The model of that name; the hint for a name that looks like a path says that there is no such file."""
    from vitral.models import model_config

    try:
        return model_config(name)
    except ConfigError as error:
        if "/" not in name and os.sep not in name:
            raise
        hint = f"there is no such file or folder either; {error.hint}"
        raise ConfigError(error.message, code=error.code, where=error.where, hint=hint) from None
