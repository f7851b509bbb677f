"""Experiment: a claim of the paper, the arms that it compares, and how they are compared fairly.

A file in `tables`, `figures` or `studies` defines one as `EXPERIMENT`; its name is that of the file. Arms are settings
over a recipe that all of them share at a scale, so a file has little more than what differs between them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from vitral.experiments.checks import Check
from vitral.experiments.measures import Measure, accuracy
from vitral.experiments.scales import Setup, standard_setup
from vitral.recipes.recipe import Recipe
from vitral.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitral.experiments.results import ExperimentResult

Scale = Literal["tiny", "small", "full"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "full")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: what differs from the recipe that all arms share."""

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)  # by path, as `train --set` takes them
    recipe: Recipe | None = None  # in place of the shared one
    start: str = ""  # the arm whose best weights, of the same seed, it starts from
    rates: tuple[float, ...] = ()  # learning rates in place of the shared ones, and as many
    budget: float = 1.0  # of the FLOPs of the shared recipe; not at the scale `full`, where lengths are the paper's
    paper: float | None = None  # the paper's value
    group: str = ""  # the line of a figure that it is on
    x: float | None = None  # where it is on that line
    compared: bool = True  # false: other arms start from it, and it is trained at the first of its rates


class Cell(NamedTuple):
    """An arm with a seed: a finished run, or without training a recipe alone."""

    arm: Arm
    seed: int
    recipe: Recipe
    folder: RunFolder | None

    @property
    def run(self) -> RunFolder:
        """The folder of its run."""
        assert self.folder is not None, "the experiment trains nothing"
        return self.folder


@dataclass(frozen=True)
class Experiment:
    """A comparison. The learning rate of every arm is chosen on held-out training images, of as many as for any other.

    Budgets are equal, unless `unequal` says why they cannot be. They are counted in FLOPs, or in images that are seen.
    """

    title: str
    claim: str  # of the paper
    arms: Callable[[Scale], Sequence[Arm]]
    checks: Sequence[Check] = ()  # at a scale only those on arms that it has
    setup: Callable[[Scale, str, str], Setup] = standard_setup  # of a scale, the data and its root
    measure: Measure = accuracy
    metric: str = "accuracy"  # what is compared of what is measured
    metric_name: str = "test accuracy"
    share: bool = True  # the metric is a share, shown in percent
    columns: Mapping[str, str] = field(default_factory=dict)  # more of what is measured, in the table: by name
    paper_name: str = ""  # what the paper's values are, if not the same metric
    budget: Literal["flops", "images"] = "flops"
    unequal: str = ""
    trained: bool = True
    times: int = 1  # that an experiment which trains nothing measures each arm: more if it measures time
    differs: Mapping[Scale, str] = field(default_factory=dict)  # from the original
    figure: "Callable[[ExperimentResult], Figure] | None" = None  # by default bars

    def list_arms(self, scale: Scale) -> tuple[Arm, ...]:
        """The arms in the order of the table, those that others start from first."""
        arms = tuple(self.arms(scale))
        names = [arm.name for arm in arms]
        assert len(set(names)) == len(names), f"two arms have the same name: {names}"
        for number, arm in enumerate(arms):
            assert arm.start in {"", *names[:number]}, f"{arm.name} starts from {arm.start!r}, not an arm before it"
        budgets = {round(total_budget(arm, arms), 6) for arm in arms if arm.compared}
        assert self.unequal or len(budgets) == 1, f"budgets differ, and `unequal` does not say why: {budgets}"
        assert self.unequal or self.budget == "flops", "budgets are equal in FLOPs, or `unequal` says why they are not"
        return arms

    def list_checks(self, scale: Scale) -> tuple[Check, ...]:
        """The checks on the arms of a scale."""
        names = {arm.name for arm in self.arms(scale) if arm.compared}
        return tuple(check for check in self.checks if names >= set(check.weights))


def total_budget(arm: Arm, arms: Sequence[Arm]) -> float:
    """The budget of an arm with that of the arms whose weights it starts from."""
    before = next((other for other in arms if other.name == arm.start), None)
    return arm.budget + (total_budget(before, arms) if before else 0.0)
