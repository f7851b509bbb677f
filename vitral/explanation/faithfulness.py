"""Which map to believe: deletion and insertion curves against random maps (RISE, arXiv 1806.07421).

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
from vitral.explanation.class_probability import class_probabilities, single_image, no_progress
from vitral.explanation.explanation import Array, Curve, Faithfulness, MapKind, Trial
from vitral.models.base import Grid, Model

POINTS = 16  # of a curve
RANDOM_MAPS = 8  # maps, against which the others are held
CLEAR = 2.0  # spreads: one more random map lies that far from eight, to a given side, once in twenty times
LEAST = 1e-3  # a spread of areas below it is held for this much: such differences mean nothing to anyone


def measure_faithfulness(
    model: Model,
    image: Tensor,
    target: int,
    maps: Mapping[MapKind, Array],
    seed: int = 0,
    advance: Callable[[int], None] = no_progress,
) -> Faithfulness:
    """The probability of a class while patches of the image (1, C, H, W) go, or come back, as each map (R, S) orders.

    Patches that go become the image's mean color; those that come back do so in a blurred image. Of equal patches the
    first in reading order comes first. Random maps of the seed are tried in the same way. `advance` hears how many more
    pictures are done: there are `count_pictures(len(maps), grid)` in all.
    """
    picture, grid = single_image(model, image)
    check_maps(maps, grid)
    rng = np.random.default_rng(seed)
    orders = [rank_patches(values) for values in maps.values()]
    orders += [rng.permutation(grid.cells()) for _ in range(RANDOM_MAPS)]
    counts = curve_points(grid)
    found = class_probabilities(model, perturbed_images(picture, grid, orders, counts), target, advance)  # (3 + 2 M (P - 2),)
    whole, covered, blurred = found[:3]
    inner = found[3:].reshape(len(orders), 2, len(counts) - 2)  # (M, 2, P - 2)
    shares = (counts / grid.cells()).astype(np.float32)  # (P,)
    drawn = [
        Curve(shares, np.array([whole, *gone, covered]), np.array([blurred, *back, whole])) for gone, back in inner
    ]
    trials = tuple(Trial(kind, curve) for kind, curve in zip(maps, drawn, strict=False))
    return Faithfulness(trials, tuple(drawn[len(maps) :]))


def count_perturbations(maps: int, grid: Grid) -> int:
    """How many pictures `curves` asks about for so many maps."""
    return 3 + 2 * (maps + RANDOM_MAPS) * (len(curve_points(grid)) - 2)


def curve_points(grid: Grid) -> NDArray[np.int64]:
    """How many patches are gone, or back, at each point of a curve (P,): none at the first, all at the last."""
    return np.linspace(0, grid.cells(), min(POINTS, grid.cells() + 1)).round().astype(np.int64)


def rank_patches(values: Array) -> NDArray[np.int64]:
    """The patches by number, those of the greatest value first."""
    return np.argsort(-values.ravel(), kind="stable")


def perturbed_images(image: Tensor, grid: Grid, orders: list[NDArray[np.int64]], counts: NDArray[np.int64]) -> Iterator[Tensor]:
    """The image (C, H, W), all of it covered, all of it blurred: where curves begin and end. Then what lies between.

    That is, for each order, the image as its patches go, and the blurred image as they come back.
    """
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
    """An image (C, H, W) behind frosted glass: a Gaussian whose deviation is a sixth of the shorter side."""
    deviation = min(image.shape[1:]) / 6
    reach = int(3 * deviation + 0.5)
    steps = torch.arange(-reach, reach + 1, device=image.device, dtype=torch.float64)
    bell = torch.exp(-0.5 * (steps / deviation) ** 2)  # (2 reach + 1,)
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
            message = "some of its values are infinite or not numbers"
            raise ConfigError(message, code="config.not_finite", where=f"maps, {kind}")


class MapScore(NamedTuple):
    """How a map did against chance, counted in the spread of random maps: above 0 it did better."""

    kind: MapKind
    deletion: float
    insertion: float
    both: float  # of the insertion area less the deletion area

    @property
    def standing(self) -> Literal["better", "worse", "unclear"]:
        """Whether the map is clearly better than chance in both ways, clearly worse in both, or neither."""
        if min(self.deletion, self.insertion) >= CLEAR:
            return "better"
        return "worse" if max(self.deletion, self.insertion) <= -CLEAR else "unclear"


def score_maps(faithfulness: Faithfulness) -> tuple[MapScore, ...]:
    """How each map did; the one with the greatest `both` is the one to believe, if it stands better than chance."""
    chance = np.array([areas(curve) for curve in faithfulness.chance])  # (random maps, 3)
    found = []
    for kind, curve in faithfulness.trials:
        spread = np.maximum(chance.std(axis=0, ddof=1), LEAST)  # (3,)
        gains = (areas(curve) - chance.mean(axis=0)) / spread
        found.append(MapScore(kind, *gains.tolist()))
    return tuple(found)


def areas(curve: Curve) -> NDArray[np.float64]:
    """What is to be large (3,): the deletion area turned around, the insertion area, and both together."""
    gone, back = -curve.deletion_area, curve.insertion_area
    return np.array([gone, back, gone + back])
