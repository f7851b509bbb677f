"""`vitral selftrain`."""

import logging
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

log = logging.getLogger("vitral")

DATA_HELP = "The labeled images: a folder with one subfolder per class, or a manifest."
UNLABELED_HELP = "The unlabeled images: folders (with subfolders), files, quoted patterns or manifests."
RESUME_HELP = "Resume a self-training. Only --json can be given with it."
PER_CLASS_HELP = (
    "Maximum number of pseudo-labeled images per class, the most confident first: a number, all, or mean, which is the "
    "average number over the classes."
)
STUDENT_HELP = "A setting of the students only, such as drop_path_rate=0.1; repeatable."


@verb(
    "vitral selftrain photos/ pile/",
    "vitral selftrain photos/ pile/ --threshold 0.8 --student drop_path_rate=0.1",
    "vitral selftrain --resume selftrain/photos",
)
def selftrain(  # noqa: PLR0913, PLR0917, one parameter per option
    set_: options.Settings,
    student: Annotated[list[str], option("A.B=C", STUDENT_HELP, "none", default_factory=list)],
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=options.complete_data)] = "",
    unlabeled: Annotated[
        list[str] | None, typer.Argument(metavar="UNLABELED", help=UNLABELED_HELP, autocompletion=options.complete_data)
    ] = None,
    resume: Annotated[str, option("FOLDER", RESUME_HELP, "a new self-training")] = "",
    rounds: Annotated[int, option("N", "Number of students; each is the teacher of the next.", min=1)] = 2,
    threshold: Annotated[float, option("X", "Minimum confidence of a pseudo-label, from 0 to 1.")] = 0.9,
    per_class: Annotated[str, option("N", PER_CLASS_HELP, True)] = "mean",
    recipe: options.Recipe = "",
    model: options.RunModel = "",
    weights: options.Weights = "",
    image_size: options.ImageSize = "",
    epochs: Annotated[float | None, option("N", "Epochs of every run.", options.OF_RECIPE)] = None,
    batch_size: Annotated[int | None, option("N", "Images per step.", options.OF_RECIPE)] = None,
    seed: Annotated[int | None, option("N", "Random seed.", options.OF_RECIPE)] = None,
    skip_bad: options.SkipBad = False,
    out: Annotated[str, option("FOLDER", "New folder for the rounds.", "selftrain/NAME")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Train with pseudo-labels of unlabeled images (Noisy Student).

    A teacher predicts labels for the unlabeled images. A student trains on them and on the labeled images, and becomes
    the next teacher. Each round is an ordinary run. Ctrl-C or SIGTERM saves a checkpoint and prints the command that
    resumes the self-training, with the same final weights. Unlabeled copies of labeled images are left out, so that
    the students do not train on validation images.
    """
    from vitral.core.config import parse_settings
    from vitral.core.machine import keep_freed_memory
    from vitral.runs.request import RunRequest
    from vitral.runs.selftraining.folder import SelfTrainingResult, create_folder
    from vitral.runs.selftraining.pseudo_labels import PseudoLabeling
    from vitral.runs.selftraining.selftrain import plan_selftraining, resume_selftraining, run_selftraining

    values = {"weights": weights, "image_size": image_size, "epochs": epochs, "batch_size": batch_size, "seed": seed}
    settings = {name: value for name, value in values.items() if value not in {"", None}} | parse_settings(set_)
    keep_freed_memory()
    if resume:
        others = {"DATA": data, "recipe": recipe, "model": model, "out": out, "student": student} | settings
        if given := [name for name, value in others.items() if value]:
            message = f"a resumed self-training keeps its settings; got {', '.join(given)}"
            raise ConfigError(message, code="config.conflict", where="--resume", hint="leave them out")
        done = resume_selftraining(resume, progress_bar)
    else:
        if not unlabeled:
            hint = "give labeled and unlabeled images: vitral selftrain photos/ pile/"
            raise ConfigError("UNLABELED is missing", code="config.missing_value", hint=hint)
        most = {"per_class": int(per_class) if per_class.isdecimal() else per_class}
        labeling = PseudoLabeling.parse({"threshold": threshold, "skip_bad": skip_bad, **most})
        request = RunRequest(data, None, recipe, model, settings)
        plan = plan_selftraining(request, unlabeled, rounds, labeling, parse_settings(student))
        done = run_selftraining(create_folder(out, plan), progress_bar)
    for line in done.summary():
        log.log(logging.ERROR if done.signal else logging.INFO, line)  # a stop is shown with --quiet, too
    echo(SelfTrainingResult(rounds=done.rounds).to_json() if json else str(done))
    if done.signal:
        raise typer.Exit(128 + done.signal)
