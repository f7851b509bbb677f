"""Measures read a finished run: the test images, a few shots, other image sizes, and gradients at the start."""

from pathlib import Path

import numpy as np
import pytest

import vitral
from tests.experiments.toy import toy_photos, toy_recipe
from vitral.evaluation.accuracy import AccuracyResult
from vitral.experiments.experiment import Arm, Cell
from vitral.experiments.measures import accuracy, few_shot, gradient_norms, size, stretching, together
from vitral.runs.train import train


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    home = tmp_path_factory.mktemp("measured")
    run = train(recipe=toy_recipe(str(toy_photos(home / "photos"))), out=str(home / "run"))
    return Cell(Arm("toy"), 1, run.recipe, run.folder)


def test_the_accuracy_is_that_of_the_evaluation_and_says_which_images_are_right(cell: Cell) -> None:
    (evaluated,) = vitral.evaluate(cell.run.best, Path(cell.recipe.data.path), split="test").results
    assert isinstance(evaluated, AccuracyResult)
    found = accuracy(cell)
    assert found.values == {"accuracy": evaluated.accuracy.top1, "images": 12.0, "chance": 0.5}
    assert np.mean(found.correct) == found.values["accuracy"]


def test_measures_are_taken_together(cell: Cell) -> None:
    found = together(accuracy, few_shot(1), stretching, gradient_norms)(cell)
    assert 0 <= found.values["few_shot"] <= 1
    assert -1 <= found.values["loss_at_twice"] <= 1
    first, last = found.values["gradient_first"], found.values["gradient_last"]
    assert min(first, last) > 0
    assert found.values["gradient_first_over_last"] == first / last
    assert found.correct.size == 12  # of the first measure


def test_the_size_is_of_the_model_and_needs_no_run(cell: Cell) -> None:
    found = size(cell._replace(folder=None)).values
    assert found["parameters"] == sum(weight.numel() for weight in cell.recipe.model.build().parameters())
