"""Histograms of oriented gradients as targets, as in MaskFeat (arXiv 2112.09133).

B images, C channels, N patches, K bins of a histogram, R x S cells of an image, E cells of a patch.
"""

from math import pi
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.embed import cut_patches
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.selfsupervised.targets.target import BaseTarget, Target


class Hog(BaseTarget):
    """The histograms of a patch's cells, one for each channel, by mean squared error."""

    kind: Literal["hog"] = "hog"
    cell: int = Field(default=8, ge=1, le=1_000)  # pixels on each side
    bins: int = Field(default=9, ge=2, le=360)

    def check(self, model: Vit) -> None:
        patch = model.token_size()
        if patch.height % self.cell or patch.width % self.cell:
            message = f"a patch of {patch} pixels does not divide into cells of {self.cell}x{self.cell}"
            raise ConfigError(message, code="config.indivisible", where="cell", hint=f"use {patch.height}")

    def build(self, model: VisionTransformer, normalize: Normalize) -> Target:
        patch = model.config.token_size()
        return Histograms(self, Size(patch.height // self.cell, patch.width // self.cell), model.config.channels)


class Histograms(Target):
    def __init__(self, config: Hog, cells: Size, channels: int) -> None:
        super().__init__()
        self.config, self.cells = config, cells
        self.outputs = channels * config.bins * cells.height * cells.width

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        histograms = gradient_histograms(images, self.config.cell, self.config.bins)  # (B, C, K, R, S)
        return cut_patches(histograms.flatten(1, 2), self.cells)  # (B, N, C K E)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(dim=2)


def gradient_histograms(images: Tensor, cell: int, bins: int) -> Tensor:
    """The histograms (B, C, K, R, S) of the directions of gradients in each cell of images (B, C, H, W).

    A pixel counts by the length of its gradient (Sobel), in the one bin of its direction; opposite directions are the
    same. Each histogram has the length 1, or is 0 where the cell is flat.
    """
    x = F.pad(images, (1, 1, 1, 1), mode="reflect")  # (B, C, H + 2, W + 2)
    down = x[:, :, :-2] + 2 * x[:, :, 1:-1] + x[:, :, 2:]  # (B, C, H, W + 2), smoothed
    right = x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]  # (B, C, H + 2, W)
    dx, dy = down[..., :-2] - down[..., 2:], right[:, :, :-2] - right[:, :, 2:]  # each (B, C, H, W)
    places = (torch.atan2(dx, dy) / pi * bins).floor().long() % bins  # (B, C, H, W)
    lengths = F.one_hot(places, bins) * torch.hypot(dx, dy)[..., None]  # (B, C, H, W, K)
    (height, width), side = images.shape[2:], (cell, cell)
    cells = lengths.unflatten(3, (width // cell, cell)).unflatten(2, (height // cell, side[0]))  # (B, C, R, ., S, ., K)
    return F.normalize(cells.sum(dim=(3, 5)).permute(0, 1, 4, 2, 3), dim=2)
