"""What is done to images: each condition is a point of a curve.

B images of a batch, C channels, H rows, W columns.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.activation import Activation
from vitral.core.config import Size
from vitral.core.rng import Purpose, rng_for, uniform_for
from vitral.evaluation.robustness import attacks
from vitral.evaluation.robustness.corruptions import CORRUPTIONS, SEVERITIES, ConstantsName, corrupt
from vitral.evaluation.robustness.occlusion import (
    DROPPED,
    cell_numbers,
    drop_cells,
    occlusion_grid,
    random_orders,
    salient_orders,
    shuffle_cells,
    shuffle_grids,
)
from vitral.evaluation.robustness.texture import edges, stylize

Part = Literal["occlusion", "shuffle", "texture", "patch", "attack", "corruptions"]
PARTS: tuple[Part, ...] = ("occlusion", "shuffle", "texture", "patch", "attack", "corruptions")
STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # of another image's texture
EPSILONS = (1, 2, 4, 8)  # of 255 levels
# What the draws of an image are for: its cells, styles, places of patches, starts of attacks, and corruptions.
DROP, SHUFFLE, STYLE, PLACE, START, CORRUPT = (1_000 * number for number in range(1, 7))


@dataclass(frozen=True)
class Given:
    """What images are changed with: the model, held-out images, and the patches that were optimized on them."""

    forward: attacks.Forward
    activation: Activation
    seed: int
    constants: ConstantsName
    styles: Tensor  # (n, C, H, W), uint8, not among the images that are evaluated
    patches: Mapping[int, Tensor]  # by side


@dataclass(frozen=True)
class ImageBatch:
    """Images to change."""

    images: Tensor  # (B, C, H, W), uint8
    labels: Tensor  # (B,), of the model
    indices: NDArray[np.int64]  # (B,), in the items that are evaluated
    given: Given

    @property
    def size(self) -> Size:
        """Height and width."""
        return Size(*self.images.shape[-2:])

    @cached_property
    def pixels(self) -> Tensor:
        """The images from 0 to 1, on the device of the model."""
        return (self.images.float() / 255).to(self.labels.device)

    @cached_property
    def cells(self) -> Tensor:
        """The number of the occlusion cell of each pixel (H, W)."""
        return cell_numbers(self.size, occlusion_grid(self.size))

    @cached_property
    def salient(self) -> Tensor:
        """The cells of each image from the most salient on."""
        found = attacks.input_gradient(self.given.forward, self.pixels, self.labels, self.given.activation)
        return salient_orders(found, self.cells)

    def orders(self, purpose: int, count: int) -> Tensor:
        """A random order of so many cells for each image."""
        return random_orders(self.given.seed, purpose, self.indices, count)

    def places(self, side: int) -> Tensor:
        """A random place of a patch in each image."""
        purpose = np.full(len(self.indices), PLACE)
        drawn = uniform_for(self.given.seed, Purpose.ROBUSTNESS, purpose, self.indices, 2, third=side)
        return attacks.random_places(drawn, side, *self.size)

    def starts(self) -> Tensor:
        """Where the steps of PGD start, from -1 to 1 (B, C, H, W)."""
        rngs = (rng_for(self.given.seed, Purpose.ROBUSTNESS, START, int(index)) for index in self.indices)
        drawn = np.stack([rng.random(self.images.shape[1:], dtype=np.float32) for rng in rngs])
        return torch.from_numpy(2 * drawn - 1).to(self.labels.device)

    def each(self, change: Callable[[NDArray[np.uint8], int], NDArray[np.uint8]]) -> Tensor:
        """The images, each changed on its own as an array (H, W, C), given its index."""
        arrays = self.images.permute(0, 2, 3, 1).cpu().numpy()
        found = [change(array, int(index)) for array, index in zip(arrays, self.indices, strict=True)]
        return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)


class Condition(NamedTuple):
    """A point of a curve, and the change: to uint8 levels, or to floats from 0 to 1."""

    part: Part
    curve: str
    x: float
    label: str
    change: Callable[[ImageBatch], Tensor]


def list_conditions(part: Part, image: Size) -> list[Condition]:
    """The conditions of a part for images of a size."""
    return list(CONDITIONS[part](image))


def _occlusion(image: Size) -> Iterator[Condition]:
    for curve, order in (("random", random_cells), ("salient", salient_cells), ("not salient", other_cells)):
        for share in DROPPED[1:]:
            yield Condition("occlusion", curve, share, f"{share:.0%}", partial(_drop, order, share))


def _drop(order: Callable[[ImageBatch], Tensor], share: float, batch: ImageBatch) -> Tensor:
    return drop_cells(batch.images, order(batch), share, batch.cells)


def random_cells(batch: ImageBatch) -> Tensor:
    """The cells in a random order: a larger share of them contains a smaller one."""
    return batch.orders(DROP, int(batch.cells.max()) + 1)


def salient_cells(batch: ImageBatch) -> Tensor:
    """The cells from the most salient on."""
    return batch.salient


def other_cells(batch: ImageBatch) -> Tensor:
    """The cells from the least salient on."""
    return batch.salient.flip(1)


def _shuffle(image: Size) -> Iterator[Condition]:
    for grid in shuffle_grids(image):
        count, label = grid.height * grid.width, f"{grid.height}x{grid.width}"
        yield Condition("shuffle", "shuffled cells", count, label, partial(_shuffled, grid))


def _shuffled(grid: Size, batch: ImageBatch) -> Tensor:
    count = grid.height * grid.width
    return shuffle_cells(batch.images, batch.orders(SHUFFLE + count, count), grid)


def _texture(image: Size) -> Iterator[Condition]:
    for strength in STRENGTHS:
        label = f"{strength:.0%}"
        yield Condition("texture", "texture of another image", strength, label, partial(_stylized, strength))
    yield Condition("texture", "edges alone", 1.0, "edges", lambda batch: batch.each(lambda array, _: edges(array)))


def _stylized(strength: float, batch: ImageBatch) -> Tensor:
    return batch.each(lambda array, index: stylize(array, style_of(batch.given, index), strength))


def style_of(given: Given, index: int) -> NDArray[np.uint8]:
    """The held-out image (H, W, C) whose texture an image gets."""
    drawn = rng_for(given.seed, Purpose.ROBUSTNESS, STYLE, index).integers(len(given.styles))
    return given.styles[int(drawn)].permute(1, 2, 0).numpy()


def patch_sides(image: Size) -> dict[int, float]:
    """The side of each patch, and the share of the image that it covers."""
    sides = (attacks.patch_side(area, *image) for area in attacks.PATCH_AREAS)
    return {side: side * side / (image.height * image.width) for side in sides}


def _patch(image: Size) -> Iterator[Condition]:
    for curve, change in (("optimized patch", _optimized), ("patch of noise", _noise)):
        for side, area in patch_sides(image).items():
            yield Condition("patch", curve, area, f"{area:.1%}", partial(change, side))


def _optimized(side: int, batch: ImageBatch) -> Tensor:
    return attacks.paste(batch.pixels, batch.given.patches[side], batch.places(side))


def _noise(side: int, batch: ImageBatch) -> Tensor:
    patch = attacks.random_patch(batch.given.seed, side, batch.images.shape[1]).to(batch.pixels.device)
    return attacks.paste(batch.pixels, patch, batch.places(side))


def _attack(image: Size) -> Iterator[Condition]:
    for curve, change in (("FGSM", _fgsm), ("PGD", _pgd)):
        for levels in EPSILONS:
            yield Condition("attack", curve, levels, f"{levels}/255", partial(change, levels / 255))


def _fgsm(epsilon: float, batch: ImageBatch) -> Tensor:
    given = batch.given
    return attacks.fgsm(given.forward, batch.pixels, batch.labels, epsilon, given.activation)


def _pgd(epsilon: float, batch: ImageBatch) -> Tensor:
    given = batch.given
    return attacks.pgd(given.forward, batch.pixels, batch.labels, epsilon, given.activation, batch.starts())


def _corruptions(image: Size) -> Iterator[Condition]:
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            yield Condition("corruptions", name, severity, f"severity {severity}", partial(_corrupted, name, severity))


def _corrupted(name: str, severity: int, batch: ImageBatch) -> Tensor:
    given, purpose = batch.given, CORRUPT + 10 * list(CORRUPTIONS).index(name) + severity

    def change(array: NDArray[np.uint8], index: int) -> NDArray[np.uint8]:
        rng = rng_for(given.seed, Purpose.ROBUSTNESS, purpose, index)
        return corrupt(array, name, severity, rng, given.constants)

    return batch.each(change)


CONDITIONS: dict[Part, Callable[[Size], Iterator[Condition]]] = {
    "occlusion": _occlusion,
    "shuffle": _shuffle,
    "texture": _texture,
    "patch": _patch,
    "attack": _attack,
    "corruptions": _corruptions,
}
