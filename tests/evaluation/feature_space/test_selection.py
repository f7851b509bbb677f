"""Farthest-point selection against its definition and the best possible choice."""

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from vitral.evaluation.feature_space.selection import coverage, farthest_point


def test_each_image_is_the_farthest_from_those_before_it() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 5))
    distances = cdist(rows, rows, "cosine")
    chosen = farthest_point(rows, 20).chosen.tolist()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert chosen[0] == np.linalg.norm(unit - unit.mean(axis=0), axis=1).argmin()
    for count in range(1, 20):
        nearest = distances[chosen[:count]].min(axis=0)
        assert nearest[chosen[count]] == pytest.approx(nearest.max())
    assert farthest_point(rows, 7).chosen.tolist() == chosen[:7]


def test_the_nearest_chosen_image_and_its_distance_are_given() -> None:
    rows = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    found = farthest_point(rows, 6)
    distances = cdist(rows.astype(np.float64), rows[found.chosen].astype(np.float64), "cosine")
    assert found.distances == pytest.approx(distances.min(axis=1), abs=1e-12)
    assert found.nearest.tolist() == found.chosen[distances.argmin(axis=1)].tolist()
    assert coverage(rows, found.chosen) == pytest.approx(found.distances, abs=1e-12)


def test_no_image_is_more_than_twice_as_far_as_with_the_best_choice() -> None:
    rows = np.random.default_rng(2).normal(size=(12, 3))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distances = cdist(unit, unit)
    best = min(distances[list(each)].min(axis=0).max() for each in combinations(range(12), 3))
    assert distances[farthest_point(rows, 3).chosen].min(axis=0).max() <= 2 * best


def test_copies_are_chosen_once_each_when_all_are_kept() -> None:
    rows = np.ones((5, 3), np.float32)
    assert sorted(farthest_point(rows, 9).chosen.tolist()) == [0, 1, 2, 3, 4]
    done: list[int] = []
    farthest_point(rows, 3, done.append)
    assert done == [1, 1, 1]
