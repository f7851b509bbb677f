"""Change the image and watch the probability of a class: occlusion, and deletion and insertion in the order of a map.

B images of a batch, M in all, C channels, H x W pixels, R x S patches, P points of a curve.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, product

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.activation import probabilities
from vitral.core.errors import ConfigError
from vitral.explanation.explanation import Array, Curve, Faithfulness, MapKind
from vitral.explanation.trace import check_class
from vitral.models.base import Grid, Model, check_images
from vitral.models.hooks import eval_mode

MAX_PIXELS = 16 * 224 * 224  # in a batch: keeps the cores busy at little memory
MAX_BATCH = 256
ACROSS = 8  # a square is about an eighth of the image: smaller ones hide too little, larger ones blur the map
MAX_SQUARES = 16  # down or across, so at most 256 forward passes an image
POINTS = 16  # of a curve
RANDOM_MAPS = 8  # that the others are compared with

Advance = Callable[[int], None]  # called with the number of further images done
Square = tuple[slice, slice]  # rows and columns of patches


def no_progress(count: int) -> None:
    """Progress that is not shown."""


@torch.no_grad()
def class_probabilities(model: Model, images: Iterable[Tensor], target: int, advance: Advance = no_progress) -> Array:
    """The probability of a class in each image (C, H, W), as (M,). A generator is consumed batch by batch."""
    check_class(model, target)
    found = [np.empty(0, dtype=np.float32)]
    with eval_mode(model):
        for batch in batch_images(images):
            chances = probabilities(model(batch).double(), model.activation)[:, target]  # (B,)
            found.append(chances.float().cpu().numpy())
            advance(len(batch))
    return np.concatenate(found)


def batch_images(images: Iterable[Tensor]) -> Iterator[Tensor]:
    """Images of one size (C, H, W) in batches (B, C, H, W) of a bounded number of pixels."""
    remaining = iter(images)
    for first in remaining:
        count = max(1, min(MAX_BATCH, MAX_PIXELS // first[0].numel()))
        yield torch.stack([first, *islice(remaining, count - 1)])


def single_image(model: Model, images: Tensor) -> tuple[Tensor, Grid]:
    """The one image (C, H, W) of a batch, and its grid of patches."""
    size = check_images(images, model.config.channels)
    if len(images) != 1:
        message, hint = f"expected one, got {len(images)}", "pass one at a time: images[:1]"
        raise ConfigError(message, code="config.wrong_count", where="images", hint=hint)
    return images[0], model.config.layout(size).grid


def occlusion(model: Model, image: Tensor, target: int, advance: Advance = no_progress) -> Array:
    """How much the probability of a class falls (R, S) when squares of the image (1, C, H, W) are covered.

    Squares are covered with the image's mean color (arXiv 1311.2901, section 4.2). On a large grid they overlap, and a
    patch has the mean over its squares. `advance` is called for `count_occlusions(grid)` images in all.
    """
    picture, grid = single_image(model, image)
    covered = squares(grid)
    chances = class_probabilities(model, occlude(picture, grid, covered), target, advance)  # (1 + squares,)
    total, times = np.zeros(grid, dtype=np.float64), np.zeros(grid)  # each (R, S)
    for square, chance in zip(covered, chances[1:], strict=True):
        total[square] += float(chances[0]) - float(chance)
        times[square] += 1
    return (total / times).astype(np.float32)


def count_occlusions(grid: Grid) -> int:
    """How many images `occlusion` runs: one for each square, and the image itself."""
    return 1 + len(squares(grid))


def squares(grid: Grid) -> list[Square]:
    """All squares; together they cover each patch at least once."""
    return list(product(intervals(grid.rows), intervals(grid.columns)))


def intervals(side: int) -> list[slice]:
    """The intervals of a side that squares cover; the last may overlap more."""
    length, step = max(1, round(side / ACROSS)), -(-side // MAX_SQUARES)
    return [slice(start, start + length) for start in [*range(0, side - length, step), side - length]]


def occlude(image: Tensor, grid: Grid, covered: list[Square]) -> Iterator[Tensor]:
    """The image (C, H, W), then the image with each square covered."""
    yield image
    mean = image.mean(dim=(1, 2), keepdim=True)  # (C, 1, 1)
    height, width = image.shape[1] // grid.rows, image.shape[2] // grid.columns
    for down, right in covered:
        changed = image.clone()  # (C, H, W)
        changed[:, down.start * height : down.stop * height, right.start * width : right.stop * width] = mean
        yield changed


def measure_faithfulness(
    model: Model,
    image: Tensor,
    target: int,
    maps: Mapping[MapKind, Array],
    seed: int = 0,
    advance: Advance = no_progress,
) -> Faithfulness:
    """Deletion and insertion curves (RISE, arXiv 1806.07421) of each map (R, S) and of random maps, for one image.

    Deleted patches become the mean color of the image (1, C, H, W); patches are inserted into a blurred image. Ties are
    broken in reading order. `advance` is called for `count_perturbations(len(maps), grid)` images in all.
    """
    picture, grid = single_image(model, image)
    check_maps(maps, grid)
    rng = np.random.default_rng(seed)
    orders = [rank_patches(values) for values in maps.values()]
    orders += [rng.permutation(grid.cells()) for _ in range(RANDOM_MAPS)]
    counts = curve_points(grid)
    chances = class_probabilities(model, perturbed_images(picture, grid, orders, counts), target, advance)
    original, covered, blurred = chances[:3]
    inner = chances[3:].reshape(len(orders), 2, len(counts) - 2)  # (maps, 2, P - 2)
    fractions = (counts / grid.cells()).astype(np.float32)  # (P,)
    curves = [
        Curve(fractions, np.array([original, *deletion, covered]), np.array([blurred, *insertion, original]))
        for deletion, insertion in inner
    ]
    return Faithfulness(dict(zip(maps, curves, strict=False)), tuple(curves[len(maps) :]))


def check_maps(maps: Mapping[MapKind, Array], grid: Grid) -> None:
    for kind, values in maps.items():
        if values.shape != grid:
            message = f"expected a map of {grid} patches, got {'x'.join(map(str, values.shape))}"
            raise ConfigError(message, code="config.shape_mismatch", where=f"maps, {kind}")
        if not np.isfinite(values).all():
            raise ConfigError("the map has infinite or NaN values", code="config.not_finite", where=f"maps, {kind}")


def count_perturbations(maps: int, grid: Grid) -> int:
    """How many images `measure_faithfulness` runs for so many maps."""
    return 3 + 2 * (maps + RANDOM_MAPS) * (len(curve_points(grid)) - 2)


def curve_points(grid: Grid) -> NDArray[np.int64]:
    """How many patches are deleted or inserted at each point of a curve (P,), from none to all."""
    return np.linspace(0, grid.cells(), min(POINTS, grid.cells() + 1)).round().astype(np.int64)


def rank_patches(values: Array) -> NDArray[np.int64]:
    """The indices of the patches, largest value first."""
    return np.argsort(-values.ravel(), kind="stable")


def perturbed_images(
    image: Tensor, grid: Grid, orders: list[NDArray[np.int64]], counts: NDArray[np.int64]
) -> Iterator[Tensor]:
    """The image (C, H, W), the mean color, the blurred image; then for each order the deletions and the insertions."""
    covered = image.mean(dim=(1, 2), keepdim=True).expand_as(image)  # (C, H, W)
    blurred = blur(image)
    yield from (image, covered, blurred)
    height, width = image.shape[1] // grid.rows, image.shape[2] // grid.columns
    for order in orders:
        for before, after in ((image, covered), (blurred, image)):
            for count in counts[1:-1]:
                chosen = torch.zeros(grid.cells(), dtype=torch.bool)
                chosen[torch.from_numpy(order[:count])] = True
                mask = chosen.view(grid).repeat_interleave(height, dim=0).repeat_interleave(width, dim=1)  # (H, W)
                yield torch.where(mask.to(image.device), after, before)


def blur(image: Tensor) -> Tensor:
    """An image (C, H, W) under a Gaussian blur, its standard deviation a sixth of the shorter side."""
    std = min(image.shape[1:]) / 6
    reach = int(3 * std + 0.5)
    steps = torch.arange(-reach, reach + 1, device=image.device, dtype=torch.float64)
    bell = torch.exp(-0.5 * (steps / std) ** 2)  # (2 reach + 1,)
    weights = (bell / bell.sum()).to(image.dtype)
    wide = F.pad(image[:, None], (reach, reach, reach, reach), mode="replicate")  # (C, 1, H + 2 reach, W + 2 reach)
    rows = F.conv2d(wide, weights.view(1, 1, -1, 1))  # (C, 1, H, W + 2 reach)
    return F.conv2d(rows, weights.view(1, 1, 1, -1))[:, 0]  # (C, H, W)
