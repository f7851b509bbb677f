"""Every picture is asked about once, in batches, in order."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.explanation.one_patch import OnePatch, patch_of, photo
from tests.models.variants import small
from vitral.explanation import perturbation
from vitral.explanation.perturbation import class_probabilities, single_image
from vitral.models import Grid, NoHead

GRID = Grid(2, 3)


def pictures(count: int) -> Iterator[Tensor]:
    return (photo(GRID)[0] for _ in range(count))


def test_probabilities_come_in_the_order_of_the_pictures_and_progress_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "MAX_PIXELS", 4 * 8 * 12)
    model, given, heard = OnePatch(GRID, (1, 2)), list(pictures(11)), list[int]()
    found = class_probabilities(model, given, 0, heard.append)
    expected = patch_of(torch.stack(given), (1, 2)).mean(dim=(1, 2, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert heard == [4, 4, 3]
    assert [len(batch) for batch in model.seen] == heard
    np.testing.assert_allclose(class_probabilities(model, given, 1), 1 - expected, rtol=1e-5)


def test_a_generator_is_taken_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "MAX_BATCH", 2)
    made: list[int] = []

    def making() -> Iterator[Tensor]:
        for number, picture in enumerate(pictures(6)):
            made.append(number)
            yield picture

    lead: list[int] = []
    class_probabilities(OnePatch(GRID, (0, 0)), making(), 0, lambda count: lead.append(len(made)))
    assert lead == [2, 4, 6]


def test_a_picture_larger_than_a_batch_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "MAX_PIXELS", 1)
    model = OnePatch(GRID, (0, 0))
    assert class_probabilities(model, pictures(3), 0).shape == (3,)
    assert len(model.seen) == 3


def test_nothing_asked_is_nothing_answered() -> None:
    assert class_probabilities(OnePatch(GRID, (0, 0)), [], 0).shape == (0,)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_the_mode_it_was_in(training: bool) -> None:
    model = OnePatch(GRID, (0, 0)).train(training)  # which asserts that it is asked without dropout
    class_probabilities(model, pictures(1), 0)
    assert model.training == training


@pytest.mark.parametrize("target", [-1, 2])
def test_a_class_that_is_not_there_is_refused(target: int) -> None:
    with raises("config.out_of_range", "target", 0, 1, target):
        class_probabilities(OnePatch(GRID, (0, 0)), pictures(1), target)


def test_a_model_without_classes_is_refused() -> None:
    with raises("config.unsupported", "target"):
        class_probabilities(small(head=NoHead()).build(), [torch.zeros(3, 32, 48)], 0)


def test_one_image_is_taken_with_its_grid_and_more_are_refused() -> None:
    model, image = OnePatch(GRID, (0, 0)), photo(GRID)
    picture, grid = single_image(model, image)
    assert torch.equal(picture, image[0])
    assert grid == GRID
    with raises("config.wrong_count", "images", 2):
        single_image(model, image.expand(2, -1, -1, -1))
    with raises("config.shape_mismatch", "images"):
        single_image(model, picture)
