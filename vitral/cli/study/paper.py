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

EXPERIMENT_HELP = "The table, figure or study to run, such as table8. Without it, the experiments are listed."
SCALE_HELP = "The scale: tiny takes minutes, small takes hours, full is the training of the paper."
DATA_HELP = "The dataset, which must have train and test images."
RESUME_HELP = "Resume the experiment in the folder."
PLAN_HELP = "Print the runs and their cost, and train nothing."
JOBS_HELP = "Number of runs at the same time."


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
        str,
        option("DATA", DATA_HELP, "tiny: the bundled images; small: CIFAR-10 or Fashion-MNIST", options.complete_data),
    ] = "",
    root: options.Root = "",
    jobs: Annotated[int, option("N", JOBS_HELP, "one per core", min=0)] = 0,
    out: Annotated[str, option("FOLDER", "Folder of the experiment.", "paper/NAME-SCALE")] = "",
    resume: Annotated[bool, typer.Option("--resume", help=RESUME_HELP)] = False,
    plan: Annotated[bool, typer.Option("--plan", help=PLAN_HELP)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Run a table or figure of the paper, and check its claims.

    Each model is trained as an ordinary run. The learning rate of each arm is chosen on held-out training images; the
    test images are used once. Ctrl-C saves the current runs and prints the command that resumes the experiment.
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
