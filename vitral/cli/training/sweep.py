"""`vitral sweep`."""

import logging
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

log = logging.getLogger("vitral")

OVER_HELP = (
    "A setting and its values, such as lr=1e-3,3e-3 or model=Ti/16,S/16; repeatable. "
    "With --random also a range: lr=1e-4..1e-2."
)
RANDOM_HELP = "Try this many random combinations instead of all."
HALVING_HELP = (
    "Successive halving: train all combinations briefly, keep the best 1 of K, train these K times as long, and so on. "
    "3 is usual."
)
JOBS_HELP = "Number of trials at the same time."
RESUME_HELP = "Resume a sweep. Only --jobs and --json can be given with it."
OUT_HELP = "New folder of the sweep."


@verb(
    "vitral sweep photos/ --over lr=1e-3,3e-3 --over model=Ti/16,S/16 --seeds 3",
    "vitral sweep photos/ --over lr=1e-4..1e-2 --random 9 --halving 3",
    "vitral sweep --resume sweeps/photos",
)
def sweep(  # noqa: PLR0913, PLR0917, one parameter per option
    set_: options.Settings,
    over: Annotated[list[str], option("SETTING=A,B", OVER_HELP, "none", default_factory=list)],
    data: options.Data = "",
    resume: Annotated[str, option("SWEEP", RESUME_HELP, "a new sweep")] = "",
    seeds: Annotated[
        int, option("N", "Number of trials of each combination, each with another random seed.", min=1)
    ] = 1,
    random: Annotated[int | None, option("N", RANDOM_HELP, "all combinations", min=1)] = None,
    halving: Annotated[int, option("K", HALVING_HELP, "no halving", min=0)] = 0,
    jobs: Annotated[int, option("N", JOBS_HELP, "one per core; one on a GPU", min=0)] = 0,
    recipe: options.Recipe = "",
    model: options.RunModel = "",
    weights: options.Weights = "",
    image_size: options.ImageSize = "",
    epochs: Annotated[float | None, option("N", "Epochs of a full trial.", options.OF_RECIPE)] = None,
    batch_size: Annotated[int | None, option("N", "Images per step.", options.OF_RECIPE)] = None,
    task: options.Task = "",
    seed: Annotated[int | None, option("N", "Random seed of the first trial.", options.OF_RECIPE)] = None,
    device: options.Device = "",
    workers: options.Workers = "",
    out: Annotated[str, option("FOLDER", OUT_HELP, "sweeps/NAME")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    root: options.Root = "",
) -> None:
    """Search over settings: train every combination, and compare them.

    Each trial is an ordinary run. The table has the mean and the standard deviation over seeds, measured on the
    validation images; test images are not used to choose. Ctrl-C saves the running trials and prints the command that
    resumes the sweep.
    """
    from vitral.core.config import parse_settings
    from vitral.runs.request import RunRequest
    from vitral.runs.sweeps.folder import create_sweep
    from vitral.runs.sweeps.search import GridSearch, RandomSearch, parse_over
    from vitral.runs.sweeps.sweep import plan_sweep, resume_sweep, run_sweep, sweep_path

    values = {"weights": weights, "image_size": image_size, "epochs": epochs, "batch_size": batch_size, "task": task}
    values |= {"seed": seed, "device": device, "root": root}
    values |= {"workers": int(workers) if workers.isdecimal() else workers}
    settings = {name: value for name, value in values.items() if value not in {"", None}} | parse_settings(set_)
    if resume:
        others = {"DATA": data, "over": over, "recipe": recipe, "model": model, "out": out} | settings
        if given := [name for name, value in others.items() if value]:
            message = f"can be combined only with --jobs and --json; got {', '.join(given)}"
            raise ConfigError(message, code="config.conflict", where="--resume", hint="leave them out")
        done = resume_sweep(resume, jobs)
    else:
        search = (
            RandomSearch(trials=random, seeds=seeds, halving=halving)
            if random
            else GridSearch(seeds=seeds, halving=halving)
        )
        request = RunRequest(data, None, recipe, model, settings)
        plan = plan_sweep(request, parse_over(over), search, jobs)
        done = run_sweep(create_sweep(sweep_path(out, data), plan), jobs)
    for line in done.summary():
        log.log(logging.ERROR if done.signal else logging.INFO, line)  # a stop is shown with --quiet, too
    echo(done.result.to_json() if json else str(done.result))
    if done.signal:
        raise typer.Exit(128 + done.signal)
    if done.result.best is None:
        raise typer.Exit(1)
