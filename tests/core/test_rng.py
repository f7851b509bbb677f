"""Dice: the same for the same numbers, unrelated for others, and the same tomorrow."""

from itertools import product

import numpy as np
import pytest

from vitral.core.rng import Purpose, rng_for, uniform_for


def test_the_same_numbers_throw_the_same_and_no_others_do() -> None:
    drawn = {key: rng_for(*key).integers(2**63) for key in product((0, 1, -1), Purpose, (0, 1, 7), (0, 1, 2**40))}
    assert len(set(drawn.values())) == len(drawn)
    assert all(rng_for(*key).integers(2**63) == value for key, value in drawn.items())


def test_neighbors_are_not_alike() -> None:
    drawn = np.array([rng_for(0, Purpose.VIEW, 3, index).random(4) for index in range(2000)])
    assert np.abs(np.corrcoef(drawn[:-1].T, drawn[1:].T) - np.eye(8)).max() < 0.11
    assert np.abs(drawn.mean(0) - 0.5).max() < 0.03


def test_the_numbers_are_those_of_the_first_release() -> None:
    assert rng_for(0, Purpose.ORDER, 0).permutation(10).tolist() == [9, 4, 2, 1, 0, 7, 8, 5, 3, 6]
    assert rng_for(7, Purpose.VIEW, 2, 5).random() == 0.8824360023822759


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 + 5])
@pytest.mark.parametrize("count", [0, 1, 4, 41])
def test_many_throws_at_once_are_those_that_each_dice_give(seed: int, count: int) -> None:
    seconds = np.array([0, 1, 5, 59_999, 2**40])
    found = uniform_for(seed, Purpose.VIEW, 3, seconds, count)
    expected = [rng_for(seed, Purpose.VIEW, 3, second).random(count) for second in seconds.tolist()]
    assert found.tolist() == np.array(expected).tolist()
