"""The plan of an experiment: the complete recipe of every arm, with budgets that are equal in counted FLOPs.

A multiply-add is two FLOPs, and a training step three forward passes. Reading images and evaluating are not counted.
"""

import os
from typing import NamedTuple

from vitral.core.config import override
from vitral.core.errors import DataError
from vitral.data.loading.sampler import SINGLE_PROCESS
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.scales import HELD_OUT, IMAGES, Setup, count_steps
from vitral.explanation.walkthrough.cost import model_cost
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe, Steps
from vitral.runs.preflight import check_recipe
from vitral.runs.request import RunRequest, open_samples, resolve

FLOPS_PER_MULTIPLY_ADD = 2
PASSES = 3  # of the model for a training image: forward, and backward for activations and weights
RATE = "optimizer.lr"


class PlannedArm(NamedTuple):
    """An arm with its recipe, of the first seed and without weights to start from."""

    arm: Arm
    recipe: Recipe
    rates: tuple[float, ...]
    steps: int

    @property
    def flops(self) -> float:
        """Of the training of one run."""
        return self.steps * step_flops(self.recipe)

    @property
    def parameters(self) -> int:
        """Of the model."""
        return model_cost(self.recipe.model).parameters


class Plan(NamedTuple):
    """Everything that an experiment trains at a scale."""

    experiment: Experiment
    scale: Scale
    setup: Setup
    arms: tuple[PlannedArm, ...]

    def level(self, number: int) -> tuple[PlannedArm, ...]:
        """The arms that can be trained once the levels before this one are: 0 for those that start from scratch."""
        return tuple(each for each in self.arms if self._depth(each.arm) == number)

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return 1 + max(self._depth(each.arm) for each in self.arms)

    def _depth(self, arm: Arm) -> int:
        return 1 + self._depth(self.find(arm.start).arm) if arm.start else 0

    def find(self, name: str) -> PlannedArm:
        """The arm of that name."""
        return next(each for each in self.arms if each.arm.name == name)

    def flops_with_start(self, name: str) -> float:
        """Of one seed of an arm, with the arms that it starts from."""
        found = self.find(name)
        return found.flops + (self.flops_with_start(found.arm.start) if found.arm.start else 0.0)

    def runs_of(self, planned: PlannedArm) -> int:
        """How many runs an arm takes, those that choose its learning rate among them."""
        if not self.experiment.trained:
            return 0
        return self.setup.seeds + (len(planned.rates) if len(planned.rates) > 1 else 0)


def step_flops(recipe: Recipe) -> float:
    """FLOPs of a training step."""
    once: Vit | Resnet = recipe.model
    return float(FLOPS_PER_MULTIPLY_ADD * PASSES * model_cost(once).multiply_adds * recipe.batch_size)


def plan_experiment(experiment: Experiment, scale: Scale, data: str, root: str) -> Plan:
    """The plan of an experiment at a scale: settings that do not exist or do not fit are found here."""
    arms = experiment.list_arms(scale)
    setup = experiment.setup(scale, data, root)
    if experiment.trained and setup.recipe.data.path:
        setup = check_data(setup)
    planned = tuple(plan_arm(experiment, scale, setup, arm) for arm in arms)
    if experiment.trained:
        counts = {len(each.rates) for each in planned if each.arm.compared}
        assert len(counts) == 1, f"arms must try as many rates: {counts}"
    return Plan(experiment, scale, setup, planned)


def plan_arm(experiment: Experiment, scale: Scale, setup: Setup, arm: Arm) -> PlannedArm:
    """An arm with its recipe: at `tiny` and `small` with as many steps as its budget pays for."""
    base = arm.recipe or setup.recipe
    if not base.data.path:
        base = base.model_copy(update={"data": setup.recipe.data})
    settings = {path: value for path, value in arm.settings.items() if path not in {"steps", "epochs"}}
    settings |= {f"length.{path}": value for path, value in arm.settings.items() if path in {"steps", "epochs"}}
    model = settings.get("model")
    if experiment.trained and isinstance(model, Vit | Resnet):  # for the images of the shared recipe
        settings["model"] = model.model_copy(update={"channels": base.model.channels})
    recipe = override(base, settings) if settings else base
    rates = arm.rates or (setup.rates if arm.recipe is None else (recipe.optimizer.lr,))
    steps = count_steps(recipe, IMAGES.get(recipe.data.path, setup.images))
    if scale == "full" and setup.recipe.data.path and recipe.data.path in IMAGES:
        path = os.path.join(setup.recipe.data.path, recipe.data.path)
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": path})})
    if scale != "full" and experiment.trained:
        whole = count_steps(setup.recipe, setup.images)
        cost = step_flops(setup.recipe) / step_flops(recipe) if experiment.budget == "flops" else 1.0
        steps = max(1, round(whole * arm.budget * cost))
        recipe = recipe.model_copy(update={"length": Steps(steps=steps)})
    return PlannedArm(arm, recipe, rates if arm.compared else rates[:1], steps)


def check_data(setup: Setup) -> Setup:
    """The setup with images held out for the choice of rates; the data must have test images of its own."""
    data = setup.recipe.data
    samples = open_samples(setup.recipe.model_copy(update={"data": data.model_copy(update={"hold_out": 0.0})}))
    if not samples.of("test"):
        message = "has no test images, with which the arms are compared"
        hint = "give data with a split `test` beside `train`"
        raise DataError(message, code="data.empty", where=samples.where, hint=hint)
    if data.hold_out == 0.0 and not samples.of("val"):
        data = data.model_copy(update={"hold_out": HELD_OUT})
    elif samples.of("val"):
        data = data.model_copy(update={"hold_out": 0.0})
    return setup._replace(recipe=setup.recipe.model_copy(update={"data": data}), images=len(samples.of("train")))


def complete_recipe(planned: PlannedArm, rate: float, seed: int, threads: int, weights: str = "") -> Recipe:
    """The recipe of a run, checked with its data."""
    settings: dict[str, object] = {RATE: rate, "seed": seed}
    settings |= {"threads": threads} if planned.recipe.threads == "auto" else {}
    settings |= {"weights": weights} if weights else {}
    found = resolve(RunRequest(recipe=planned.recipe, settings=settings))
    check_recipe(found.recipe, found.samples, SINGLE_PROCESS)
    return found.recipe
