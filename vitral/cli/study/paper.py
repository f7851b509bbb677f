"""`vitral paper`."""

import logging
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import SCALES, complete_experiment, complete_from
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo

log = logging.getLogger("vitral")

EXPERIMENT_HELP = "The table, figure or study to run, such as table8; without it, the list."
SCALE_HELP = "How much: tiny takes minutes, small hours, full is the paper's own training."
DATA_HELP = "The data, with train and test images."
RESUME_HELP = "Go on with the experiment in the folder."
PLAN_HELP = "Show what would be trained and what it would cost; train nothing."
JOBS_HELP = "Runs at once."


@verb(
    "vitral paper",
    "vitral paper table8 --scale tiny",
    "vitral paper table8 --scale small --data fashion-mnist --jobs 2",
    "vitral paper table8 --scale small --resume",
    "vitral paper table8 --scale full --plan",
)
def paper(  # noqa: PLR0913, PLR0917, one parameter per option
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help=EXPERIMENT_HELP, autocompletion=complete_experiment)
    ] = "",
    scale: Annotated[str, option("SCALE", SCALE_HELP, complete=complete_from(SCALES))] = "tiny",
    data: Annotated[
        str, option("DATA", DATA_HELP, "the bundled images; CIFAR-10 or Fashion-MNIST", options.complete_data)
    ] = "",
    root: options.Root = "",
    jobs: Annotated[int, option("N", JOBS_HELP, "one per core", min=0)] = 0,
    out: Annotated[str, option("FOLDER", "Folder of the experiment.", "paper/NAME-SCALE")] = "",
    resume: Annotated[bool, typer.Option("--resume", help=RESUME_HELP)] = False,
    plan: Annotated[bool, typer.Option("--plan", help=PLAN_HELP)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Run a table or figure of the paper, and check its claims.

    Every run is an ordinary run. The learning rate of every arm is chosen on held-out training images; test images
    are used once. Ctrl-C saves the runs at hand and prints the command that goes on.
    """
    from vitral.experiments.registry import list_experiments

    if not experiment:
        found = list_experiments()
        if json:
            from json import dumps

            echo(dumps([each._asdict() for each in found], indent=2))
            return
        from vitral.html.text import align_columns

        echo("\n".join(align_columns([(each.name, each.summary) for each in found])))
        return
    from vitral.core.machine import bound_spinning

    bound_spinning()
    from vitral.experiments.paper import paper as run
    from vitral.experiments.paper import plan_paper

    if plan:
        planned = plan_paper(experiment, scale, data, root)
        echo(planned.to_json() if json else str(planned))
        return
    done = run(experiment, scale=scale, data=data, root=root, jobs=jobs, out=out, resume=resume)
    for line in done.summary():
        log.log(logging.ERROR if done.signal else logging.INFO, line)  # a stop is shown with --quiet, too
    if done.signal:
        raise typer.Exit(128 + done.signal)
    echo(done.result.to_json() if json else str(done.result))
