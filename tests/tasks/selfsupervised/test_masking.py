"""Masks: how many patches they hide, where, and that they do not depend on how a batch is split."""

from math import sqrt

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import Size
from vitral.core.rng import BatchRng
from vitral.models.base import Grid
from vitral.models.embed import Convolutions, OverlappingPatches, Patches
from vitral.models.position import Rope2d
from vitral.models.registry import model_config
from vitral.tasks.selfsupervised.masking import (
    BlockRange,
    Blocks,
    check_maskable,
    draw_block_masks,
    draw_block_size,
    draw_prediction_blocks,
    draw_random_mask,
)

GRID = Grid(14, 14)


def batch_rngs() -> tuple[BatchRng, list[BatchRng]]:
    """The generator of a batch of 6, and those of two processes."""
    places = np.arange(6)
    return BatchRng(3, 5, 0, places), [BatchRng(3, 5, rank, places[rank::2]) for rank in range(2)]


def test_a_random_mask_keeps_a_part_of_the_patches_and_can_restore_their_order() -> None:
    mask = draw_random_mask(np.random.default_rng(0), 50, 196, 0.75)
    assert mask.kept.shape == (50, 49)
    assert mask.hidden().sum(dim=1).tolist() == [147] * 50
    patches = torch.arange(196).expand(50, -1)
    hidden = patches[mask.hidden()].view(50, 147)
    assert torch.equal(torch.cat([mask.kept, hidden], dim=1).sort(dim=1).values, patches)
    order = torch.argsort(mask.restore, dim=1)
    assert torch.equal(order[:, :49], mask.kept)
    assert torch.equal(patches.gather(1, order).gather(1, mask.restore), patches)
    often = torch.zeros(196).scatter_add_(0, mask.kept.flatten(), torch.ones(50 * 49))
    assert often.max() < 26  # of 50 images, 12.5 on average


def test_masks_are_the_same_however_a_batch_is_split() -> None:
    whole, halves = batch_rngs()
    one = draw_random_mask(whole, 6, 20, 0.5)
    blocks = draw_block_masks(whole, GRID, [75, 0, 60, 98, 30, 75])
    predicted = draw_prediction_blocks(whole, 6, GRID)
    for rank, half in enumerate(halves):
        assert torch.equal(draw_random_mask(half, 3, 20, 0.5).kept, one.kept[rank::2])
        counts = [75, 0, 60, 98, 30, 75][rank::2]
        assert torch.equal(draw_block_masks(half, GRID, counts), blocks[rank::2])
        for found, expected in zip(draw_prediction_blocks(half, 3, GRID), predicted[rank::2], strict=True):
            assert found.context.tolist() == expected.context.tolist()
            assert [each.tolist() for each in found.targets] == [each.tolist() for each in expected.targets]


def test_blocks_hide_at_most_what_is_asked_for_and_nearly_as_much() -> None:
    masks = draw_block_masks(np.random.default_rng(0), GRID, [75] * 200)
    counts = masks.sum(dim=1)
    assert counts.max() <= 75
    assert counts.float().mean() > 65
    assert (counts == 75).float().mean() > 0.1
    assert draw_block_masks(np.random.default_rng(0), GRID, [0, 0]).sum() == 0
    assert draw_block_masks(np.random.default_rng(0), GRID, []).shape == (0, 196)
    # In blocks: most neighbors of a hidden patch are hidden, far more than if they were drawn one by one.
    grids = masks.view(200, 14, 14)
    together = (grids[:, 1:] & grids[:, :-1]).sum() / grids[:, :-1].sum()
    assert together > 0.7


def test_a_single_block_has_the_area_and_aspect_that_are_allowed() -> None:
    for seed in range(100):
        mask = draw_block_masks(np.random.default_rng(seed), Grid(40, 40), [64], Blocks(least=64, aspect=0.3))
        rows, columns = (mask.view(40, 40).any(dim=axis).sum().item() for axis in (1, 0))
        if mask.sum() == rows * columns:  # one block, not two that overlap
            assert 0.25 < rows / columns < 4
            assert abs(rows * columns - 64) < 12


def test_the_size_of_a_block_is_driven_by_one_number() -> None:
    class Half:
        def random(self) -> float:
            return 0.5

    size = draw_block_size(Half(), GRID, BlockRange((0.15, 0.2), (0.75, 1.5)))  # type: ignore[arg-type]
    area, aspect = int(196 * 0.175), 1.125
    assert size == Grid(round(sqrt(area * aspect)), round(sqrt(area / aspect)))
    assert draw_block_size(Half(), GRID, BlockRange((1.0, 1.0), (1.0, 1.0))) == Grid(13, 13)  # type: ignore[arg-type]


def test_a_context_has_no_patch_of_a_target_and_is_large_enough() -> None:
    for seed in range(30):
        for found in draw_prediction_blocks(np.random.default_rng(seed), 4, GRID):
            assert len(found.targets) == 4
            assert len({len(target) for target in found.targets}) == 1
            assert not set(found.context) & {patch for target in found.targets for patch in target}
            assert len(found.context) > 10


def test_a_grid_of_a_few_patches_has_a_context_all_the_same() -> None:
    for found in draw_prediction_blocks(np.random.default_rng(0), 50, Grid(4, 4)):
        assert len(found.context) > 0


@pytest.mark.parametrize(
    "model",
    [
        model_config("R50x1"),
        small(stem=Convolutions(widths=(8, 16, 32))),
        small(stem=OverlappingPatches(patch=Size(12, 12), stride=Size(8, 8))),
        small(stem=Patches(patch=Size(32, 48))),
    ],
    ids=["resnet", "convolutions", "overlapping", "one-patch"],
)
def test_models_whose_hidden_patches_leak_or_are_none_are_refused(model: object) -> None:
    with raises("config.unsupported"):
        check_maskable(model, "mae")  # type: ignore[arg-type]
    check_maskable(small(), "mae")


def test_positions_of_the_whole_grid_are_refused() -> None:
    with raises("config.conflict", "model"):
        check_maskable(small(position=Rope2d()), "mae")


def test_images_that_patches_do_not_divide_are_refused() -> None:
    with raises("config.indivisible", "model.image_size"):
        check_maskable(small(stem=Patches(patch=Size(7, 8), remainder="crop")), "mae")
