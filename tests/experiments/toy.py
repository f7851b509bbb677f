"""Toy experiments on a folder of little photos: two arms with runs of a second, and the one that is killed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.runs.small import SETTINGS, photos
from vitral.core.config import override, parse_settings
from vitral.core.errors import VitralError
from vitral.experiments.checks import better
from vitral.experiments.experiment import Arm, Experiment
from vitral.experiments.scales import Setup
from vitral.recipes.recipe import Recipe, Steps
from vitral.runs.callbacks.events import RunCallback
from vitral.runs.folder import is_finished, is_run
from vitral.runs.request import RunRequest, resolve
from vitral.runs.sweeps.folder import Trial
from vitral.runs.train import resume, train

STEPS = 4


def toy_photos(home: Path) -> Path:
    """Photos with train and test images, and no validation images."""
    return photos(home, {"train": 12, "test": 6})


def toy_recipe(data: str) -> Recipe:
    settings = parse_settings([*SETTINGS, "threads=1"])
    found = resolve(RunRequest(data, recipe="small_hundreds", settings=settings)).recipe
    return found.model_copy(update={"length": Steps(steps=STEPS)})


def toy_setup(scale: str, data: str, root: str) -> Setup:
    return Setup(toy_recipe(data), (1e-3, 3e-3), 2)


def chain_setup(scale: str, data: str, root: str) -> Setup:
    return Setup(toy_recipe(data), (1e-3,), 2)


def pair_setup(scale: str, data: str, root: str) -> Setup:
    """Two runs, with a checkpoint after every step."""
    return Setup(override(toy_recipe(data), {"checkpoints.every_seconds": 0.0}), (1e-3,), 1)


TOY = Experiment(
    title="Toy",
    claim="deeper is better",
    arms=lambda scale: [Arm("one layer", {"model.depth": 1}, paper=0.5), Arm("two layers", {"model.depth": 2})],
    checks=[better("two layers", "one layer")],
    setup=toy_setup,
)
CHAIN = Experiment(
    title="Chain",
    claim="a start helps",
    arms=lambda scale: [
        Arm("start", compared=False),
        Arm("from scratch", budget=2.0),
        Arm("fine-tuned", start="start"),
    ],
    checks=[better("fine-tuned", "from scratch")],
    setup=chain_setup,
)


PAIR = replace(TOY, title="Pair", setup=pair_setup)


def train_one(trial: Trial, callbacks: Sequence[RunCallback] = ()) -> None:
    """A trial in this process, from where it was: starting one takes seconds."""
    where = str(trial.folder.path)
    try:
        if not is_finished(where):
            resume(where) if is_run(where) else train(recipe=trial.recipe, out=where, callbacks=callbacks)
    except VitralError as error:
        trial.log_file.write_text(f"error[{error.code}]: {error.message}\n")
