"""`vitral merge`."""

import logging
from typing import Annotated, Any

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.completion import SPLITS, complete_from, complete_weights
from vitral.cli.terminal.options import complete_data, option
from vitral.cli.terminal.text import echo

log = logging.getLogger("vitral")

MODELS_HELP = "Two or more runs or bundles of the same architecture, classes and preprocessing."
DATA_HELP = "A dataset on which to measure each model and the result, such as photos/."
GREEDY_HELP = (
    "Greedy soup: start with the most accurate model, and add each other one only if the accuracy on --data does not "
    "drop."
)
ALPHA_HELP = "Interpolate between two models, A and B: (1 - alpha) A + alpha B, such as 0.5."
SPLIT_HELP = "The split to measure on: test or val."
SPLIT_DEFAULT = "val, or test where there is no val"


@verb(
    "vitral merge runs/a runs/b runs/c soup",
    "vitral merge runs/a runs/b runs/c soup --data photos/ --greedy",
    "vitral merge models/base runs/tuned merged --alpha 0.5 --data photos/",
)
def merge(  # noqa: PLR0913, PLR0917, one parameter per option
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help=MODELS_HELP, autocompletion=complete_weights)],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to create.")],
    data: Annotated[str, option("DATA", DATA_HELP, "not measured", complete_data)] = "",
    greedy: Annotated[bool, typer.Option("--greedy", help=GREEDY_HELP)] = False,
    alpha: Annotated[float | None, option("X", ALPHA_HELP, "the mean of all models")] = None,
    split: Annotated[str, option("NAME", SPLIT_HELP, SPLIT_DEFAULT, complete_from(SPLITS))] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the name of the folder.")] = False,
    root: options.Root = "",
    batch_size: Annotated[int, option("N", "Images per batch.", min=1)] = 64,
    device: options.Device = "auto",
) -> None:
    """Average the weights of several models into one.

    The models should be fine-tuned from the same weights. Nothing is trained.
    """
    from vitral.core.config import parse_settings
    from vitral.runs.merge import merge as merge_models

    settings: Any = parse_settings([f"batch_size={batch_size}", f"device={device}"])
    settings |= {"data": data or None, "greedy": greedy, "alpha": alpha, "split": split, "root": root}
    result = merge_models(models, out, **settings, progress=progress_bar)
    for line in (*result.notes, *str(result).splitlines()):
        log.info(line)
    echo(result.to_json() if json else out)
