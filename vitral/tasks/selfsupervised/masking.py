"""Which patches of an image are hidden: at random (MAE), in blocks (BEiT), or as targets and context (I-JEPA).

B images, R x S patches, N = R S, M of them kept. Indices count patches row by row. What an image gets depends on the
generator alone, so masks do not depend on how a batch is split into processes and microbatches.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.core.rng import batch_rng, image_rngs, image_uniforms
from vitral.models.base import Grid
from vitral.models.embed import Patches
from vitral.models.vit import Vit, check_patch_drop


def check_maskable(model: Config, task: str) -> None:
    """Raise ConfigError unless hidden patches of a model can be left out: any subset of its patches can be encoded."""
    check_plain_patches(model, task)
    check_patch_drop(model, where="model")


def check_plain_patches(model: Config, task: str) -> None:
    """Raise ConfigError unless patches of a model can be hidden, by leaving them out or by a mask token.

    Other stems would leak the pixels of hidden patches into those that are kept.
    """
    if not isinstance(model, Vit) or not isinstance(model.stem, Patches):
        found = f"the stem {model.stem.kind}" if isinstance(model, Vit) else "a ResNet"
        message = f"the task {task} needs a model with plain patches, got {found}"
        raise ConfigError(message, code="config.unsupported", where="model", hint="choose a model such as S/16")
    patch, image = model.token_size(), model.image_size
    if any(side % step for side, step in zip(image, patch, strict=True)):
        message = f"the task {task} needs images that the patches divide, got {image} pixels for {patch} patches"
        raise ConfigError(message, code="config.indivisible", where="model.image_size", hint="use another size")
    if model.stem.grid(model.image_size).cells() < MIN_PATCHES:
        message = "patches are predicted from each other, but the image is one patch"
        hint = "use larger images or smaller patches"
        raise ConfigError(message, code="config.unsupported", where="image_size", hint=hint)


MIN_PATCHES = 2
Mask = NDArray[np.bool_]  # (R, S), true where a patch is hidden


class RandomMask(NamedTuple):
    """The patches of each image in a random order, of which the first M are kept."""

    kept: Tensor  # (B, M), indices of patches
    restore: Tensor  # (B, N), the place in the random order of each patch

    def hidden(self) -> Tensor:
        """Whether each patch is hidden, (B, N)."""
        return self.restore >= self.kept.shape[1]


def draw_random_mask(rng: np.random.Generator, images: int, patches: int, ratio: float) -> RandomMask:
    """Keep int(N (1 - ratio)) random patches of each image, at least one (MAE, arXiv 2111.06377)."""
    order = np.argsort(image_uniforms(rng, images, patches), axis=1, kind="stable")  # (B, N)
    kept = max(1, int(patches * (1 - ratio)))
    return RandomMask(torch.from_numpy(order[:, :kept].copy()), torch.from_numpy(np.argsort(order, axis=1)))


TRIES = 10  # of a block that fits, in a round


class Blocks(NamedTuple):
    """What blocks may be like: their least area in patches, and the least ratio of height and width."""

    least: int = 16
    aspect: float = 0.3  # and at most 1 / aspect


def draw_block_mask(rng: np.random.Generator, grid: Grid, count: int, blocks: Blocks) -> Mask:
    """Hide `count` patches of an image in blocks, or fewer if no further block fits (BEiT, arXiv 2106.08254)."""
    mask = np.zeros(grid, dtype=np.bool_)
    while (left := count - int(mask.sum())) > 0:
        if not any(_add_block(rng, mask, left, blocks) for _ in range(TRIES)):
            break
    return mask


def _add_block(rng: np.random.Generator, mask: Mask, left: int, blocks: Blocks) -> bool:
    """Hide one more block of at most `left` patches that are not hidden yet; false if the one drawn does not fit."""
    area = blocks.least + (left - blocks.least) * rng.random()  # less than the least once less is left
    aspect = exp(rng.uniform(log(blocks.aspect), -log(blocks.aspect)))
    height, width = round(sqrt(area * aspect)), round(sqrt(area / aspect))
    rows, columns = mask.shape
    if height >= rows or width >= columns:
        return False
    top, left_edge = int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1))
    block = mask[top : top + height, left_edge : left_edge + width]
    fits = 0 < int((~block).sum()) <= left
    if fits:
        block[:] = True
    return fits


def draw_block_masks(
    rng: np.random.Generator,
    grid: Grid,
    counts: Sequence[int],
    blocks: Blocks = Blocks(),  # noqa: B008, a constant
) -> Tensor:
    """Masks (B, N), true where a patch is hidden, for images of which so many patches are to be hidden."""
    masks = [
        draw_block_mask(each, grid, count, blocks)
        for each, count in zip(image_rngs(rng, len(counts)), counts, strict=True)
    ]
    return torch.from_numpy(np.stack(masks).reshape(len(counts), grid.cells()) if masks else _no_masks(grid))


def _no_masks(grid: Grid) -> Mask:
    return np.zeros((0, grid.cells()), dtype=np.bool_)


class BlockRange(NamedTuple):
    """The area of a block as a fraction of the grid, and its height by its width: least and most of each."""

    scale: tuple[float, float]
    aspect: tuple[float, float]


class PredictionBlocks(NamedTuple):
    """The patches that are predicted in an image and those they are predicted from."""

    targets: list[NDArray[np.int64]]  # the indices of the patches in each target block
    context: NDArray[np.int64]  # the indices of the patches that the context has


TARGETS, CONTEXT = BlockRange((0.15, 0.2), (0.75, 1.5)), BlockRange((0.85, 1.0), (1.0, 1.0))
LEAST_CONTEXT = 10  # patches; more are needed
CONTEXT_TRIES = 20  # before a target is no longer kept out of the context


def draw_block_size(rng: np.random.Generator, grid: Grid, block: BlockRange) -> Grid:
    """The size of a block. One number decides its area and its aspect, as the authors' code has it."""
    number = float(rng.random())
    low, high = block.scale
    area = int(grid.cells() * (low + number * (high - low)))
    aspect = block.aspect[0] + number * (block.aspect[1] - block.aspect[0])
    height, width = round(sqrt(area * aspect)), round(sqrt(area / aspect))
    return Grid(max(1, min(height, grid.rows - 1)), max(1, min(width, grid.columns - 1)))


def draw_prediction_blocks(
    rng: np.random.Generator,
    images: int,
    grid: Grid,
    targets: int = 4,
    target_range: BlockRange = TARGETS,
    context_range: BlockRange = CONTEXT,
) -> list[PredictionBlocks]:
    """Target blocks and a context without them for each image, of sizes that all images share (I-JEPA, 2301.08243).

    The contexts have different numbers of patches: the authors cut all to the least of the batch of all processes.
    """
    shared = batch_rng(rng)
    target, context = (draw_block_size(shared, grid, block) for block in (target_range, context_range))
    return [_draw_blocks(each, grid, target, context, targets) for each in image_rngs(rng, images)]


def _draw_blocks(rng: np.random.Generator, grid: Grid, target: Grid, context: Grid, targets: int) -> PredictionBlocks:
    blocks = [_place_block(rng, grid, target) for _ in range(targets)]
    least = min(LEAST_CONTEXT, context.cells() - 1)
    for respected in range(targets, -1, -1):
        for _ in range(CONTEXT_TRIES):
            kept = _place_block(rng, grid, context)
            for block in blocks[:respected]:
                kept = kept & ~block
            if kept.sum() > least:
                found = [np.flatnonzero(block).astype(np.int64) for block in blocks]
                return PredictionBlocks(found, np.flatnonzero(kept).astype(np.int64))
    raise AssertionError("a context that no target is kept out of is large enough")


def _place_block(rng: np.random.Generator, grid: Grid, size: Grid) -> Mask:
    """A block of this size somewhere in the grid; the last row and column are not reached, as the authors have it."""
    block = np.zeros(grid, dtype=np.bool_)
    top, left = int(rng.integers(max(1, grid.rows - size.rows))), int(rng.integers(max(1, grid.columns - size.columns)))
    block[top : top + size.rows, left : left + size.columns] = True
    return block
