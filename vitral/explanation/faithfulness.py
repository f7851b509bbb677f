"""Faithfulness of maps: deletion and insertion curves compared with random maps (RISE, arXiv 1806.07421).

C channels, H x W pixels, R x S patches, P points of a curve, M maps.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.explanation.class_probability import class_probabilities, no_progress, single_image
from vitral.explanation.explanation import Array, Curve, Faithfulness, MapKind
from vitral.models.base import Grid, Model

POINTS = 16  # of a curve
RANDOM_MAPS = 8  # that the others are compared with
CLEAR = 2.0  # standard deviations: one more random map lies that far from eight, to a given side, once in twenty times
MIN_STD = 1e-3  # of areas: smaller differences mean nothing

Verdict = Literal["better", "worse", "unclear"]  # than random


def measure_faithfulness(
    model: Model,
    image: Tensor,
    target: int,
    maps: Mapping[MapKind, Array],
    seed: int = 0,
    advance: Callable[[int], None] = no_progress,
) -> Faithfulness:
    """Deletion and insertion curves of each map (R, S) and of random maps, for one image (1, C, H, W).

    Deleted patches become the image's mean color; patches are inserted into a blurred image. Ties are broken in reading
    order. `advance` is called with the number of further images done, `count_perturbations(len(maps), grid)` in all.
    """
    picture, grid = single_image(model, image)
    check_maps(maps, grid)
    rng = np.random.default_rng(seed)
    orders = [rank_patches(values) for values in maps.values()]
    orders += [rng.permutation(grid.cells()) for _ in range(RANDOM_MAPS)]
    counts = curve_points(grid)
    images = perturbed_images(picture, grid, orders, counts)
    probabilities = class_probabilities(model, images, target, advance)  # (3 + 2 M (P - 2),)
    original, covered, blurred = probabilities[:3]
    inner = probabilities[3:].reshape(len(orders), 2, len(counts) - 2)  # (M, 2, P - 2)
    fractions = (counts / grid.cells()).astype(np.float32)  # (P,)
    curves = [
        Curve(fractions, np.array([original, *deletion, covered]), np.array([blurred, *insertion, original]))
        for deletion, insertion in inner
    ]
    return Faithfulness(dict(zip(maps, curves, strict=False)), tuple(curves[len(maps) :]))


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
    cell = Size(image.shape[1] // grid.rows, image.shape[2] // grid.columns)
    for order in orders:
        for before, after in ((image, covered), (blurred, image)):
            for count in counts[1:-1]:
                chosen = torch.zeros(grid.cells(), dtype=torch.bool)
                chosen[torch.from_numpy(order[:count])] = True
                mask = enlarge_mask(chosen.view(grid), cell).to(image.device)  # (H, W)
                yield torch.where(mask, after, before)


def enlarge_mask(mask: Tensor, cell: Size) -> Tensor:
    """A mask of patches (R, S) as one of pixels (H, W)."""
    return mask.repeat_interleave(cell.height, dim=0).repeat_interleave(cell.width, dim=1)


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


def check_maps(maps: Mapping[MapKind, Array], grid: Grid) -> None:
    for kind, values in maps.items():
        if values.shape != grid:
            message = f"expected a map of {grid} patches, got {'x'.join(map(str, values.shape))}"
            raise ConfigError(message, code="config.shape_mismatch", where=f"maps, {kind}")
        if not np.isfinite(values).all():
            message = "the map has infinite or NaN values"
            raise ConfigError(message, code="config.not_finite", where=f"maps, {kind}")


class MapScore(NamedTuple):
    """How far a map is above random maps, in standard deviations of those."""

    deletion: float
    insertion: float
    combined: float  # of the insertion area minus the deletion area

    @property
    def verdict(self) -> Verdict:
        """Better or worse than random in both tests, or unclear."""
        if min(self.deletion, self.insertion) >= CLEAR:
            return "better"
        return "worse" if max(self.deletion, self.insertion) <= -CLEAR else "unclear"


def score_maps(faithfulness: Faithfulness) -> dict[MapKind, MapScore]:
    """The score of each map; none where the test was not run. Of the better maps, trust that of highest `combined`."""
    if len(faithfulness.random) < 2:
        return {}
    random = np.array([areas(curve) for curve in faithfulness.random])  # (random maps, 3)
    mean, std = random.mean(axis=0), np.maximum(random.std(axis=0, ddof=1), MIN_STD)  # each (3,)
    return {kind: MapScore(*((areas(curve) - mean) / std).tolist()) for kind, curve in faithfulness.curves.items()}


def areas(curve: Curve) -> NDArray[np.float64]:
    """What should be large (3,): the negative deletion area, the insertion area, and their sum."""
    deletion, insertion = -curve.deletion_auc, curve.insertion_auc
    return np.array([deletion, insertion, deletion + insertion])
