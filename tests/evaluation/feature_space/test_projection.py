"""The map and the spread of features against scikit-learn and known cases."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from vitral.evaluation.feature_space.projection import measure_spread, project
from vitral.evaluation.knn import normalize_rows


def test_the_map_is_the_first_two_principal_components() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6)) * [5, 3, 1, 1, 1, 1]
    theirs = PCA(2, svd_solver="full").fit(normalize_rows(rows))
    found = project(rows)
    assert np.abs(found.points) == pytest.approx(np.abs(theirs.transform(normalize_rows(rows))), abs=1e-10)
    assert found.explained == pytest.approx(theirs.explained_variance_ratio_)
    assert (project(rows).points == found.points).all()


def test_the_sign_of_a_component_does_not_depend_on_the_order_of_images() -> None:
    rows = np.random.default_rng(1).normal(size=(30, 5))
    assert project(rows[::-1]).points[::-1] == pytest.approx(project(rows).points, abs=1e-9)


def test_features_of_one_number_or_all_the_same_have_a_map_too() -> None:
    assert project(np.array([[1.0], [-1.0]])).points.shape == (2, 2)
    assert project(np.ones((4, 3))).points == pytest.approx(np.zeros((4, 2)), abs=1e-9)


def test_the_spread_of_all_directions_alike_is_1_and_of_equal_features_0() -> None:
    even = measure_spread(np.concatenate([np.eye(8), -np.eye(8)]))
    assert [even.std, even.rank, even.width] == pytest.approx([1, 8, 8])
    line = measure_spread(np.array([[1.0, 0, 0], [-1.0, 0, 0]]))
    assert line.rank == pytest.approx(1)
    same = measure_spread(np.ones((5, 4)))
    assert same.std == pytest.approx(0, abs=1e-9)
