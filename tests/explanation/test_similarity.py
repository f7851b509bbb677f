"""Tokens that are alike look alike."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitral.explanation.similarity import cosine_similarity, pca_colors
from vitral.models import Grid


def test_similarity_is_the_cosine_between_tokens() -> None:
    tokens = torch.randn(7, 5)
    found = cosine_similarity(tokens)
    expected = [[F.cosine_similarity(one, other, dim=0).item() for other in tokens] for one in tokens]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_a_token_that_is_zero_is_like_none() -> None:
    found = cosine_similarity(torch.tensor([[3.0, 4.0], [0.0, 0.0], [-6.0, -8.0]]))
    np.testing.assert_allclose(found, [[1, 0, -1], [0, 0, 0], [-1, 0, 1]], atol=1e-7)


def test_each_color_is_one_direction_in_which_tokens_differ() -> None:
    grid, width = Grid(6, 8), 16
    down = torch.arange(6.0).repeat_interleave(8) - 2.5  # (N,), three patterns at right angles to each other
    right = torch.arange(8.0).repeat(6) - 3.5
    checks = (torch.arange(48) // 8 + torch.arange(48)) % 2 - 0.5
    axes = torch.linalg.qr(torch.randn(width, 3)).Q.mT  # (3, D)
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    tokens = 9 * right[:, None] * axes[0] + 3 * down[:, None] * axes[1] + checks[:, None] * axes[2] + 50
    found = pca_colors(tokens, grid)
    assert found.shape == (6, 8, 3)
    for color, pattern in enumerate((right, down, checks)):
        expected = pattern.view(6, 8).double().numpy()
        low, high = np.percentile(expected, (2, 98))
        np.testing.assert_allclose(found[:, :, color], ((expected - low) / (high - low)).clip(0, 1), atol=1e-5)


def test_a_few_strange_tokens_do_not_take_all_the_range() -> None:
    tokens = torch.zeros(100, 4)
    tokens[:, 0] = torch.linspace(0, 1, 100)
    tokens[7, 0] = 1000.0
    found = pca_colors(tokens, Grid(10, 10))[:, :, 0].ravel()
    assert found[7] == 1
    assert found[90] - found[10] > 0.7
    assert (found >= 0).all()
    assert (found <= 1).all()


@pytest.mark.parametrize("tokens", [torch.ones(6, 4), torch.randn(1, 4).expand(6, -1), torch.zeros(6, 4)])
def test_tokens_that_are_all_the_same_are_gray(tokens: torch.Tensor) -> None:
    assert (pca_colors(tokens, Grid(2, 3)) == 0.5).all()


def test_tokens_on_a_line_use_one_color() -> None:
    found = pca_colors(torch.randn(12, 1) @ torch.randn(1, 8), Grid(3, 4))
    assert np.ptp(found[:, :, 0]) == 1
    assert (found[:, :, 1:] == 0.5).all()


def test_a_color_in_which_nearly_all_are_the_same_tells_nothing() -> None:
    tokens = torch.zeros(200, 3)
    tokens[0] = 1.0
    assert (pca_colors(tokens, Grid(10, 20)) == 0.5).all()
