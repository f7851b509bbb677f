"""`vitral describe`."""

from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import MODELS, complete_name_or_path
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo

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
    from vitral.explanation.walkthrough.describe import describe as describe_model

    settings = ({"image_size": image_size} if image_size else {}) | parse_settings(set_)
    description = describe_model(name, settings)
    echo(description.to_json() if json else description)
