"""Folds: every image in one of them, every class in all of them alike."""

import numpy as np
import pytest
from numpy.typing import NDArray

from vitral.evaluation.subject import stratified_folds


def uneven() -> NDArray[np.int64]:
    return np.random.default_rng(0).choice(4, size=103, p=[0.6, 0.3, 0.08, 0.02])


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_each_class_is_divided_evenly(folds: int) -> None:
    labels = uneven()
    fold = stratified_folds(labels, folds, seed=0)
    assert set(fold) == set(range(folds))
    for members in (fold, *(fold[labels == label] for label in range(4))):
        counts = np.bincount(members, minlength=folds)
        assert counts.max() - counts.min() <= 1


def test_the_seed_decides() -> None:
    first, again, other = (stratified_folds(uneven(), 5, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
