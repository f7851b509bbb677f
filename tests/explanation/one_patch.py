"""A model made by hand: it looks at one patch and at nothing else."""

import torch
from torch import Tensor

from tests.models.variants import small
from vitral.core.config import Size
from vitral.models import Grid, LinearHead, Model, Patches

SIDE = 4  # pixels of a patch


class OnePatch(Model):
    """Gives its first class the brightness of one patch, from 0 to 1, as probability."""

    def __init__(self, grid: Grid, place: tuple[int, int]) -> None:
        super().__init__()
        image = Size(grid.rows * SIDE, grid.columns * SIDE)
        stem = Patches(patch=Size(SIDE, SIDE))
        self.config = small(channels=1, image_size=image, stem=stem, head=LinearHead(num_classes=2))
        self.place = place
        self.seen: list[Tensor] = []  # every batch that was asked about

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        self.seen.append(images)
        bright = patch_of(images, self.place).mean(dim=(1, 2, 3)).double()  # (B,)
        return torch.stack([bright.log(), (1 - bright).log()], dim=1)  # (B, 2)


def patch_of(images: Tensor, place: tuple[int, int]) -> Tensor:
    """The pixels (B, C, 4, 4) of one patch."""
    row, column = place
    return images[:, :, row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]


def photo(grid: Grid) -> Tensor:
    """Some picture (1, 1, H, W) of numbers between 0.1 and 0.9."""
    return 0.1 + 0.8 * torch.rand(1, 1, grid.rows * SIDE, grid.columns * SIDE)
