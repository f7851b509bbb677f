"""Occlusion: how much the probability falls when a part of the image is covered (arXiv 1311.2901, section 4.2).

C channels, H x W pixels, R x S patches.
"""

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from vitral.explanation.class_probability import class_probabilities, no_progress, single_image
from vitral.explanation.explanation import Array
from vitral.models.base import Grid, Model

ACROSS = 8  # a square is about an eighth of the image: smaller ones hide too little, larger ones blur the map
MOST = 16  # squares down or across, so at most 256 forward passes an image


def occlusion(model: Model, image: Tensor, target: int, advance: Callable[[int], None] = no_progress) -> Array:
    """How much the probability of a class falls (R, S) when squares of the image (1, C, H, W) are covered.

    Squares are covered with the image's mean color. On a large grid they overlap, and a patch has the mean over its
    squares. `advance` is called with the number of further images done, `count_occlusions(grid)` in all.
    """
    picture, grid = single_image(model, image)
    covered = list(squares(grid))
    probabilities = class_probabilities(model, occlude(picture, grid, covered), target, advance)  # (1 + squares,)
    total, times = np.zeros(grid, dtype=np.float64), np.zeros(grid)  # each (R, S)
    for square, probability in zip(covered, probabilities[1:], strict=True):
        total[square] += float(probabilities[0]) - float(probability)
        times[square] += 1
    return (total / times).astype(np.float32)


Square = tuple[slice, slice]  # rows and columns of patches


def count_occlusions(grid: Grid) -> int:
    """How many images `occlusion` runs: one for each square, and the image itself."""
    return 1 + len(list(squares(grid)))


def squares(grid: Grid) -> Iterator[Square]:
    """All squares; together they cover each patch at least once."""
    return ((down, right) for down in intervals(grid.rows) for right in intervals(grid.columns))


def intervals(side: int) -> list[slice]:
    """The intervals of a side that squares cover; the last may overlap more."""
    length, step = max(1, round(side / ACROSS)), -(-side // MOST)
    starts = [*range(0, side - length, step), side - length]
    return [slice(start, start + length) for start in starts]


def occlude(image: Tensor, grid: Grid, covered: list[Square]) -> Iterator[Tensor]:
    """The image (C, H, W), then the image with each square covered."""
    yield image
    mean = image.mean(dim=(1, 2), keepdim=True)  # (C, 1, 1)
    height, width = image.shape[1] // grid.rows, image.shape[2] // grid.columns
    for down, right in covered:
        changed = image.clone()  # (C, H, W)
        changed[:, down.start * height : down.stop * height, right.start * width : right.stop * width] = mean
        yield changed
