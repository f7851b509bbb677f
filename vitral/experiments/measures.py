"""What is measured of a finished run, or of a model without training.

A measure gives numbers by name. Of the metric that an experiment compares, `images` says how many test images it is a
share of, and `chance` what guessing would give.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.core.manifest import own_files
from vitral.data.loading.sampler import SINGLE_PROCESS
from vitral.data.samples import Samples
from vitral.evaluation.fewshot import FewShotEvaluator, FewShotResult
from vitral.evaluation.resolution import ResolutionResult
from vitral.evaluation.subject import predict
from vitral.explanation.walkthrough.cost import model_cost
from vitral.models.vit import VisionTransformer
from vitral.recipes.recipe import DataConfig, Recipe
from vitral.runs.build import build_eval_loader, build_loader, select_device
from vitral.runs.evaluate import evaluate
from vitral.runs.request import open_samples
from vitral.weights.load import load

if TYPE_CHECKING:
    from vitral.experiments.experiment import Cell

IMAGES, CHANCE, ACCURACY = "images", "chance", "accuracy"


class Measured(NamedTuple):
    """Numbers by name, for each test image whether it is classified correctly, and arrays for the figure."""

    values: Mapping[str, float]
    correct: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # (images,); empty for another metric
    arrays: Mapping[str, NDArray[np.float64]] = MappingProxyType({})


Measure = Callable[["Cell"], Measured]


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
    recipe, samples, device = cell.recipe, cell_samples(cell.recipe), select_device(cell.recipe)
    with own_files():
        model = load(cell.run.best).model.to(device)
    loader = build_loader(recipe, samples, "test", SINGLE_PROCESS)
    found = predict(model, loader, recipe.images.normalize, device, lambda rows: rows, lambda images: None)
    correct = (found.predicted == found.labels).numpy()
    return Measured({ACCURACY: float(correct.mean()), **about(samples)}, correct)


def few_shot(shots: int) -> Measure:
    """The accuracy of ridge regression on the features of a few training images of each class: the mean of 3 draws."""

    def measure(cell: "Cell") -> Measured:
        samples, evaluator = cell_samples(cell.recipe), FewShotEvaluator(shots=(shots,))
        with own_files():
            loaded = load(cell.run.best)
        (found,) = evaluate(loaded, samples, with_=[evaluator], split="test", cache=False).results
        assert isinstance(found, FewShotResult)
        return Measured({"few_shot": found.rows[0].score.mean, **about(samples)})

    return measure


def together(*measures: Measure) -> Measure:
    """All numbers and arrays of several measures; of images, what the first has."""

    def measure(cell: "Cell") -> Measured:
        found = [each(cell) for each in measures]
        values = {name: value for each in found for name, value in each.values.items()}
        arrays = {name: array for each in found for name, array in each.arrays.items()}
        return Measured(values, found[0].correct, arrays)

    return measure


def size(cell: "Cell") -> Measured:
    """Parameters and multiply-adds of the model, for one image."""
    cost = model_cost(cell.recipe.model)
    return Measured({"parameters": float(cost.parameters), "multiply_adds": float(cost.multiply_adds)})


def gradient_norms(cell: "Cell") -> Measured:
    """The norms of the gradient of the first and the last layer at initialization, on a batch of training images."""
    recipe, samples = cell.recipe, cell_samples(cell.recipe)
    torch.manual_seed(cell.seed)
    model = recipe.model.build()
    assert isinstance(model, VisionTransformer)
    torch.nn.init.normal_(head_weight(model), std=0.02)  # a head of zeros, as it starts, gives no gradients
    batch = next(iter(build_eval_loader(recipe, samples, "train", SINGLE_PROCESS).epoch()))
    loss = cross_entropy(model(recipe.images.normalize.prepare(batch.images)), batch.labels)
    loss.backward()
    first, last = (
        math.sqrt(sum(float(weight.grad.square().sum()) for weight in block.parameters() if weight.grad is not None))
        for block in (model.blocks[0], model.blocks[-1])
    )
    return Measured({"gradient_first": first, "gradient_last": last, "gradient_first_over_last": first / last})


def head_weight(model: VisionTransformer) -> Tensor:
    """The weight of the last linear layer."""
    return [weight for name, weight in model.head.named_parameters() if name.endswith("weight")][-1]


def stretching(cell: "Cell") -> Measured:
    """The accuracy that is lost when test images have twice the trained size, without fine-tuning."""
    samples = cell_samples(cell.recipe)
    with own_files():
        loaded = load(cell.run.best)
    (found,) = evaluate(loaded, samples, with_="resolution", split="test", cache=False).results
    assert isinstance(found, ResolutionResult)
    own = next(row.top1 for row in found.rows if row.is_train_size)
    return Measured({"loss_at_twice": own - found.rows[-1].top1})
