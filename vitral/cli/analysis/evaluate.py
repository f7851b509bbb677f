"""`vitral evaluate`."""

import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.completion import EVALUATORS, ROBUSTNESS_PARTS, SPLITS, complete_from, complete_list
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.evaluation.evaluators import Evaluator

log = logging.getLogger("vitral")

WITH_HELP = f"Evaluators, separated by commas: {', '.join(EVALUATORS)}."
SPLIT_HELP = "The split to evaluate on: test or val."
IMAGES_HELP = "At most so many images for robustness, drawn by the seed, such as 5000."
PARTS_HELP = f"What robustness does to images, separated by commas: {', '.join(ROBUSTNESS_PARTS)}."
REFERENCE_HELP = "What mCE of robustness is relative to: alexnet, or the JSON of an evaluation of another model."
PAGE_HELP = "Also write a page with the pictures and curves of robustness, such as robustness.html."
OOD_HELP = "Images unlike the data, for --with ood: a folder, also without classes, or what DATA may be."
CALIBRATED_HELP = "Write a copy of the model with the temperature that --with calibration fitted into this new folder."
SPLIT_DEFAULT = "test, or val where there is no test"


@verb(
    "vitral evaluate runs/photos photos/",
    "vitral evaluate runs/photos photos/ --with accuracy,knn --json",
    "vitral evaluate runs/photos photos/ --with robustness --page robustness.html",
    "vitral evaluate runs/photos photos/ --with calibration --calibrated new",
)
def evaluate(  # noqa: PLR0913, PLR0917, one option per setting
    model: options.Model,
    data: options.Data,
    with_: Annotated[str, option("A,B", WITH_HELP, True, complete_list(EVALUATORS), "--with")] = "accuracy",
    split: Annotated[str, option("NAME", SPLIT_HELP, SPLIT_DEFAULT, complete_from(SPLITS))] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the confusion matrix.")] = False,
    root: options.Root = "",
    ood_data: Annotated[str, option("DATA", OOD_HELP, "none", options.complete_data)] = "",
    calibrated: Annotated[str, option("FOLDER", CALIBRATED_HELP, "not written")] = "",
    batch_size: Annotated[int, option("N", "Images per batch.", min=1)] = 64,
    workers: options.Workers = "auto",
    device: options.Device = "auto",
    seed: Annotated[int, option("N", "Random seed of folds and few-shot draws.", min=0)] = 0,
    lenient: options.Lenient = False,
    max_pixels: options.MaxPixels = None,
    images: Annotated[int, option("N", IMAGES_HELP, min=1)] = 1000,
    parts: Annotated[str, option("A,B", PARTS_HELP, "all", complete_list(ROBUSTNESS_PARTS))] = "",
    reference: Annotated[str, option("NAME|FILE", REFERENCE_HELP, "none")] = "",
    page: Annotated[str, option("FILE", PAGE_HELP, "no page")] = "",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not cache features on disk.")] = False,
) -> None:
    """Measure the accuracy of a model, or the quality of its features.

    Features are cached in the user's cache folder for the next evaluation.
    """
    from rich.console import Console

    from vitral.core.config import parse_settings
    from vitral.core.machine import keep_freed_memory
    from vitral.evaluation.results import format_evaluation, print_evaluation
    from vitral.runs.evaluate import evaluate as evaluate_model

    if workers != "auto" and not workers.isdecimal():
        message = f"expected a whole number of at least 0, or auto, got {workers!r}"
        raise ConfigError(message, code="config.wrong_type", where="--workers")
    given = {"batch_size": batch_size, "workers": workers, "device": device, "seed": seed}
    settings: Any = parse_settings(f"{name}={value}" for name, value in given.items())
    settings |= {"cache": False} if no_cache else {}
    settings |= {"lenient": True} if lenient else {}
    settings |= {"max_pixels": max_pixels} if max_pixels else {}
    settings |= {"with_": with_robustness(with_, images, parts, reference, page)}
    settings |= {"ood_data": ood_data, "calibrated": calibrated}
    keep_freed_memory()
    evaluation = evaluate_model(model, data, **settings, split=split, root=root, progress=progress_bar)
    for note in evaluation.notes:
        log.info(note)
    if json:
        echo(evaluation.to_json())
    else:
        print_evaluation(format_evaluation(evaluation), Console())


def with_robustness(names: str, images: int, parts: str, reference: str, page: str) -> "list[Evaluator]":
    """The evaluators that are named, robustness among them with its settings."""
    from vitral.evaluation.evaluators import parse_evaluators
    from vitral.evaluation.robustness.evaluator import RobustnessEvaluator, parse_parts

    found = parse_evaluators(names)
    settings = {"images": images, "reference": reference, "page": page, "parts": parse_parts(parts)}
    defaults = RobustnessEvaluator().model_dump()
    if not any(isinstance(each, RobustnessEvaluator) for each in found):
        if given := [name for name, value in settings.items() if value != defaults[name]]:
            message, hint = f"--{given[0]} is for robustness", "add robustness to --with, or leave it out"
            raise ConfigError(message, code="config.conflict", where=f"--{given[0]}", hint=hint)
        return found
    own = RobustnessEvaluator.model_validate(settings)
    return [own if isinstance(each, RobustnessEvaluator) else each for each in found]
