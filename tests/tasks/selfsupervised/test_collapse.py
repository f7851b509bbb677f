import math

import pytest
import torch

from vitral.tasks.selfsupervised.collapse import batch_entropy, effective_rank, feature_std, mean_entropy
from vitral.tasks.task import Collective

ONE = Collective()


def test_features_that_point_everywhere_have_a_spread_of_1_and_equal_ones_of_0() -> None:
    torch.manual_seed(0)
    assert feature_std(torch.randn(5000, 32) * 7, ONE) == pytest.approx(1.0, abs=0.01)
    assert feature_std(torch.ones(50, 32), ONE) < 1e-6
    assert feature_std(torch.randn(50, 1) ** 2 * torch.randn(32), ONE) < 1e-5  # lengths do not count
    assert 0.05 < feature_std(torch.randn(500, 32) + 10, ONE) < 0.15
    assert feature_std(torch.zeros(0, 4), ONE) == 0


def test_the_rank_counts_directions() -> None:
    torch.manual_seed(0)
    assert effective_rank(torch.randn(20_000, 8), ONE) == pytest.approx(1.0, abs=0.01)
    assert effective_rank(torch.randn(2000, 2) @ torch.randn(2, 2) @ torch.eye(2, 8), ONE) <= 2 / 8 + 1e-6
    assert effective_rank(torch.randn(500, 1) * torch.ones(8), ONE) == pytest.approx(1 / 8)
    assert effective_rank(torch.ones(500, 8), ONE) == 0


def test_entropies_are_fractions_of_the_uniform_one() -> None:
    assert mean_entropy(torch.full((3, 5), 0.2)) == pytest.approx(1.0)
    assert mean_entropy(torch.eye(5)) == 0
    mixed = torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert mean_entropy(mixed) == pytest.approx(0.5 * math.log(2) / math.log(4))
    assert batch_entropy(torch.eye(5), ONE) == pytest.approx(1.0)  # sharp, and another output for each image
    assert batch_entropy(torch.eye(5)[:1].expand(9, -1), ONE) == 0  # all the same
