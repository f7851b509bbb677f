"""Pixels as targets, as in MAE.  B images, C channels, N patches of P x Q pixels."""

from typing import Literal

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.embed import cut_patches
from vitral.models.vit import VisionTransformer
from vitral.tasks.selfsupervised.mae import NormalizedPixels, PixelTarget
from vitral.tasks.selfsupervised.targets.target import BaseTarget, Target, patch_values


class PatchPixels(BaseTarget):
    """The pixels of a patch, by mean squared error."""

    kind: Literal["pixels"] = "pixels"
    scale: PixelTarget = NormalizedPixels()

    def build(self, model: VisionTransformer, normalize: Normalize) -> Target:
        return PixelValues(self, patch_values(model.config), model.config.token_size())


class PixelValues(Target):
    def __init__(self, config: PatchPixels, outputs: int, patch: Size) -> None:
        super().__init__()
        self.config, self.outputs, self.patch = config, outputs, patch

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        pixels = cut_patches(images, self.patch)  # (B, N, C P Q)
        scale = self.config.scale.scale(pixels)
        return (pixels - scale.mean) / scale.std

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(dim=2)

    def draw(self, outputs: Tensor, pixels: Tensor) -> Tensor | None:
        scale = self.config.scale.scale(pixels)
        return outputs * scale.std + scale.mean
