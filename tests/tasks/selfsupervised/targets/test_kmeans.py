"""k-means finds the middle of groups, and says when there are too few points."""

import numpy as np
import torch

from tests.errors import raises
from vitral.tasks.selfsupervised.targets.kmeans import fit_centers, nearest_centers


def test_groups_that_lie_apart_have_their_mean_as_a_center() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([middle + rng.normal(size=(200, 2)) * 0.1 for middle in middles])
    starts = [fit_centers(points, 3, np.random.default_rng(seed), rounds=0) for seed in range(20)]
    # One point of each group to start from: Lloyd's algorithm may otherwise stay where two share a group.
    seed = next(seed for seed, each in enumerate(starts) if len(np.unique(each.round(-1) + 0.0, axis=0)) == 3)
    found = fit_centers(points, 3, np.random.default_rng(seed))
    expected = points.reshape(3, 200, 2).mean(axis=1)
    ordered = found[[np.square(found - each).sum(axis=1).argmin() for each in middles]]
    np.testing.assert_allclose(ordered, expected, atol=1e-9)


def test_rounds_lower_the_distance_and_centers_depend_on_the_generator_alone() -> None:
    points = np.random.default_rng(1).normal(size=(5_000, 4))

    def distance(rounds: int) -> float:
        centers = fit_centers(points, 20, np.random.default_rng(2), rounds)
        return float(np.square(points[:, None] - centers).sum(axis=2).min(axis=1).mean())

    costs = [distance(rounds) for rounds in (0, 1, 3, 10)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.9 * costs[0]
    one, other = (fit_centers(points, 20, np.random.default_rng(2)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_fewer_different_points_than_centers_are_refused() -> None:
    with raises("config.out_of_range", "3 different points"):
        fit_centers(np.array([[0.0], [1.0], [2.0]] * 10), 4, np.random.default_rng(0))


def test_the_nearest_center_is_found_by_brute_force_and_in_full_precision() -> None:
    torch.manual_seed(0)
    points, centers = torch.randn(3, 50, 6), torch.randn(20, 6)
    expected = (points[..., None, :] - centers).square().sum(dim=-1).argmin(dim=-1)
    assert torch.equal(nearest_centers(points, centers), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(nearest_centers(points, centers), expected)
