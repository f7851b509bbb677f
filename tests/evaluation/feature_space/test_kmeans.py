"""k-means against scikit-learn's from the same centers, and what it promises alone."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from vitral.evaluation.feature_space import kmeans as module
from vitral.evaluation.feature_space.kmeans import assign, draw_centers, kmeans, largest_first, lloyd
from vitral.evaluation.knn import normalize_rows


def groups(images: int = 90, count: int = 3, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows around a few far directions, of unequal numbers."""
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.choice(count, images, p=np.arange(count, 0, -1) / sum(range(count + 1))))
    rows = np.eye(6)[labels] * 5 + rng.normal(size=(images, 6)) * 0.3
    return rows.astype(np.float32), labels


@pytest.mark.parametrize("block", [10, module.BLOCK])
def test_the_clusters_are_those_of_scikit_learn_from_the_same_centers(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    rows = normalize_rows(np.random.default_rng(1).normal(size=(200, 5)))
    centers = rows[[3, 50, 90, 180]]
    found = lloyd(rows, centers)
    theirs = KMeans(4, init=centers, n_init=1, algorithm="lloyd", tol=0, max_iter=100).fit(rows)
    assert found.converged
    assert found.labels.tolist() == theirs.labels_.tolist()
    assert found.inertia == pytest.approx(theirs.inertia_, rel=1e-10)
    assert np.abs(found.centers - theirs.cluster_centers_).max() < 1e-10


def test_groups_are_found_and_the_largest_comes_first() -> None:
    rows, labels = groups()
    found = kmeans(rows, 3, seed=0)
    assert found.labels.tolist() == labels.tolist()  # whose numbers are by size
    assert found.similarities() == pytest.approx(
        [float(row @ found.centers[label]) / float(np.linalg.norm(found.centers[label]))
         for row, label in zip(normalize_rows(rows), found.labels, strict=True)]
    )  # fmt: skip


def test_the_same_seed_gives_the_same_bits_and_the_order_of_images_does_not_number_clusters() -> None:
    rows, _ = groups(images=60)
    first, second = (kmeans(rows, 5, seed=3) for _ in range(2))
    assert first.centers.tobytes() == second.centers.tobytes()
    assert first.labels.tolist() == second.labels.tolist()
    assert np.bincount(first.labels).tolist() == sorted(np.bincount(first.labels).tolist(), reverse=True)
    assert kmeans(rows, 5, seed=4).centers.tobytes() != first.centers.tobytes()


def test_members_are_the_images_of_a_cluster_from_the_nearest_to_its_center_on() -> None:
    found = kmeans(groups()[0], 3, seed=0)
    members = found.members(1)
    assert sorted(members.tolist()) == np.flatnonzero(found.labels == 1).tolist()
    assert (np.diff(found.distances[members]) >= 0).all()


def test_a_cluster_that_loses_its_images_gets_the_farthest_one() -> None:
    rows = normalize_rows(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [-1.0, 0.0]]))
    found = lloyd(rows, np.array([[1.0, 0.1], [50.0, 50.0]]))
    assert found.labels.tolist() == [0, 0, 0, 1]


def test_copies_of_one_image_are_clusters_too() -> None:
    found = kmeans(np.ones((4, 3), np.float32), 3, seed=0)
    assert found.inertia == pytest.approx(0)
    assert len(found.centers) == 3


def test_centers_are_drawn_apart() -> None:
    rows = normalize_rows(groups()[0])
    for seed in range(10):
        drawn = draw_centers(rows, 3, np.random.default_rng(seed))
        assert sorted(assign(drawn, np.eye(6)[:3]).labels.tolist()) == [0, 1, 2]


def test_clusters_of_one_size_are_numbered_by_their_first_image() -> None:
    rows = normalize_rows(np.array([[0.0, 1.0], [1.0, 0.0]]))
    found = largest_first(lloyd(rows, rows[[1, 0]]))
    assert found.labels.tolist() == [0, 1]
    assert found.centers.tolist() == rows.tolist()
