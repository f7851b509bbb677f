"""Principal components are what scikit-learn finds, and always point the same way."""

import pytest
import torch
from sklearn.decomposition import PCA

from vitral.explanation.similarity import pca


@pytest.mark.parametrize(("rows", "numbers"), [(40, 12), (12, 40), (20, 20)])
def test_components_are_those_of_scikit_learn(rows: int, numbers: int) -> None:
    given = torch.randn(rows, numbers, dtype=torch.float64) + 3
    found, expected = pca(given, 5), PCA(n_components=5).fit(given.numpy())
    theirs = torch.from_numpy(expected.components_)
    turned = (found.directions * theirs).sum(dim=1, keepdim=True).sign()
    torch.testing.assert_close(found.directions, theirs * turned)
    torch.testing.assert_close(found.explained_variance, torch.from_numpy(expected.explained_variance_ratio_))
    torch.testing.assert_close(found.coordinates, torch.from_numpy(expected.transform(given.numpy())) * turned.T)


@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
def test_the_number_of_greatest_size_in_a_direction_is_positive_whichever_way_the_rows_point(
    shape: tuple[int, int],
) -> None:
    rows = torch.randn(shape)
    one, other = pca(rows, 4), pca(-rows, 4)
    assert (one.directions.amax(dim=1) == one.directions.abs().amax(dim=1)).all()
    torch.testing.assert_close(one.directions, other.directions)


def test_there_are_no_more_components_than_the_rows_have() -> None:
    plane = torch.randn(50, 2) @ torch.randn(2, 9) + 100
    assert pca(plane, 5).directions.shape == (2, 9)
    assert pca(plane[:2], 5).directions.shape == (1, 9)


def test_rows_that_are_the_same_have_none() -> None:
    found = pca(torch.full((7, 3), 0.1), 5)
    assert found.directions.shape == (0, 3)
    assert found.explained_variance.shape == (0,)
    assert found.coordinates.shape == (7, 0)
