"""What is measured of a finished run, or of a model without training.

A measure gives numbers by name. Of the metric that an experiment compares, `images` says how many test images it is a
share of, and `chance` what guessing would give.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from vitral.data.samples import Samples
from vitral.evaluation.accuracy import AccuracyResult
from vitral.evaluation.fewshot import FewShotEvaluator, FewShotResult
from vitral.explanation.walkthrough.cost import model_cost
from vitral.recipes.recipe import DataConfig, Recipe
from vitral.runs.evaluate import evaluate
from vitral.runs.request import open_samples

if TYPE_CHECKING:
    from vitral.experiments.experiment import Cell

Measured = Mapping[str, float]
IMAGES, CHANCE = "images", "chance"


@lru_cache(maxsize=4)
def _open(data: str) -> Samples:
    return open_samples(Recipe(data=DataConfig.from_json(data)))


def cell_samples(recipe: Recipe) -> Samples:
    """The data of a run, with its split."""
    return _open(recipe.data.to_json())


def about(samples: Samples) -> dict[str, float]:
    """The number of test images, and the accuracy of guessing."""
    return {IMAGES: float(len(samples.of("test"))), CHANCE: 1 / len(samples.classes)}


def accuracy(cell: "Cell") -> Measured:
    """The accuracy of the best weights on the test images."""
    samples = cell_samples(cell.recipe)
    (found,) = evaluate(cell.run.best, samples, split="test", cache=False).results
    assert isinstance(found, AccuracyResult)
    return {"accuracy": found.accuracy.top1, **about(samples)}


def few_shot(shots: int) -> "Callable[[Cell], Measured]":
    """The accuracy of ridge regression on the features of a few training images of each class: the mean of 3 draws."""

    def measure(cell: "Cell") -> Measured:
        samples, evaluator = cell_samples(cell.recipe), FewShotEvaluator(shots=(shots,))
        (found,) = evaluate(cell.run.best, samples, with_=[evaluator], split="test", cache=False).results
        assert isinstance(found, FewShotResult)
        return {"few_shot": found.rows[0].score.mean, **about(samples)}

    return measure


def together(*measures: "Callable[[Cell], Measured]") -> "Callable[[Cell], Measured]":
    """All numbers of several measures."""
    return lambda cell: {name: value for measure in measures for name, value in measure(cell).items()}


def size(cell: "Cell") -> Measured:
    """Parameters and multiply-adds of the model, for one image."""
    cost = model_cost(cell.recipe.model)
    return {"parameters": float(cost.parameters), "multiply_adds": float(cost.multiply_adds)}
