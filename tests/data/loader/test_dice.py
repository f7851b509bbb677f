"""Dice: the same for the same numbers, unrelated for others, and the same tomorrow."""

from itertools import product

import numpy as np

from vitral.data.loader.dice import Purpose, dice


def test_the_same_numbers_throw_the_same_and_no_others_do() -> None:
    throws = {key: dice(*key).integers(2**63) for key in product((0, 1, -1), Purpose, (0, 1, 7), (0, 1, 2**40))}
    assert len(set(throws.values())) == len(throws)
    assert all(dice(*key).integers(2**63) == value for key, value in throws.items())


def test_neighbours_are_not_alike() -> None:
    throws = np.array([dice(0, Purpose.VIEW, 3, index).random(4) for index in range(2000)])
    assert np.abs(np.corrcoef(throws[:-1].T, throws[1:].T) - np.eye(8)).max() < 0.11
    assert np.abs(throws.mean(0) - 0.5).max() < 0.03


def test_the_numbers_are_those_of_the_first_release() -> None:
    assert dice(0, Purpose.ORDER, 0).permutation(10).tolist() == [9, 4, 2, 1, 0, 7, 8, 5, 3, 6]
    assert dice(7, Purpose.VIEW, 2, 5).random() == 0.8824360023822759
