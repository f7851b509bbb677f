"""Cells that are dropped or shuffled."""

import numpy as np
import torch

from vitral.core.config import Size
from vitral.evaluation.robustness.occlusion import (
    cell_numbers,
    drop_cells,
    occlusion_grid,
    random_orders,
    salient_orders,
    shuffle_cells,
    shuffle_grids,
)


def test_as_many_cells_are_dropped_as_in_the_original_and_more_contain_fewer() -> None:
    image = Size(224, 224)
    assert occlusion_grid(image) == Size(14, 14)
    cells = cell_numbers(image, Size(14, 14))
    orders = random_orders(0, 1, np.arange(2), 196)
    images = torch.full((2, 3, 224, 224), 9, dtype=torch.uint8)
    before = torch.zeros(2, 224, 224, dtype=torch.bool)
    for tenths in range(10):
        black = (drop_cells(images, orders, tenths / 10, cells) == 0).all(dim=1)
        assert black.sum(dim=(1, 2)).tolist() == [(tenths * 196 // 10) * 256] * 2
        assert bool((black | ~before).all())
        before = black
    assert not torch.equal(before[0], before[1])


def test_cells_of_odd_sizes_cover_the_image_once() -> None:
    counts = cell_numbers(Size(30, 45), Size(7, 11)).flatten().bincount()
    assert (len(counts), int(counts.sum())) == (77, 30 * 45)
    assert set(counts.tolist()) <= {16, 20, 25}


def test_shuffling_moves_whole_cells_and_leaves_the_rest() -> None:
    images = torch.arange(7 * 9).reshape(1, 1, 7, 9)
    found = shuffle_cells(images, torch.tensor([[3, 2, 1, 0]]), Size(2, 2))
    assert torch.equal(found[0, 0, :3, :4], images[0, 0, 3:6, 4:8])
    assert torch.equal(found[0, 0, 3:6, :4], images[0, 0, :3, 4:8])
    assert torch.equal(found[..., 8], images[..., 8])
    assert torch.equal(found[..., 6, :], images[..., 6, :])
    assert torch.equal(shuffle_cells(images, torch.arange(4)[None], Size(2, 2)), images)
    assert shuffle_grids(Size(224, 224))[-1] == Size(16, 16)
    assert shuffle_grids(Size(28, 28))[-1] == Size(14, 14)


def test_the_cell_with_the_largest_gradient_is_the_most_salient() -> None:
    gradients = torch.zeros(1, 2, 4, 4)
    gradients[0, 1, 0, 3], gradients[0, 0, 2, 0] = -3, 1
    assert salient_orders(gradients, cell_numbers(Size(4, 4), Size(2, 2)))[0, :2].tolist() == [1, 2]
