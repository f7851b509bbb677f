"""Codes of patches as targets, as in BEiT, from k-means instead of a trained tokenizer.

B images, C channels, N patches of P x Q pixels, K codes.
"""

from math import ceil
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.data.transforms.preprocessing import Normalize
from vitral.models.embed import cut_patches
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.selfsupervised.mae import NormalizedPixels, PixelTarget
from vitral.tasks.selfsupervised.targets.kmeans import fit_centers, nearest_centers
from vitral.tasks.selfsupervised.targets.target import BaseTarget, Target, patch_values

PATCHES_FOR_CODE = 16  # of the training images, from which the codebook is computed
START_STD = 1.0


class PatchCodes(BaseTarget):
    """The nearest patch of a codebook, by cross-entropy.

    The codebook is computed before the first step by k-means of patches of random training images. It is part of the
    task's state.
    """

    kind: Literal["codes"] = "codes"
    codes: int = Field(default=8192, ge=2, le=1_000_000)
    scale: PixelTarget = NormalizedPixels()  # of the patches that are compared

    def build(self, model: VisionTransformer, normalize: Normalize) -> Target:
        return CodeNumbers(self, model.config)


class CodeNumbers(Target):
    codebook: Tensor

    def __init__(self, config: PatchCodes, model: Vit) -> None:
        super().__init__()
        self.config, self.outputs, self.patch = config, config.codes, model.token_size()
        self.fit_images = ceil(config.codes * PATCHES_FOR_CODE / model.layout(model.image_size).grid.cells())
        self.register_buffer("codebook", torch.empty(config.codes, patch_values(model)))  # (K, C P Q), until it is fit:
        torch.nn.init.normal_(self.codebook, std=START_STD)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return nearest_centers(self.scaled(cut_patches(images, self.patch)), self.codebook)  # (B, N)

    def scaled(self, pixels: Tensor) -> Tensor:
        """Patches (B, N, C P Q) as they are compared with those of the codebook."""
        scale = self.config.scale.scale(pixels)
        return (pixels - scale.mean) / scale.std

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.mT, targets, reduction="none")

    @torch.no_grad()
    def fit(self, images: Tensor, rng: np.random.Generator) -> None:
        patches = self.scaled(cut_patches(images, self.patch)).flatten(0, 1)  # (patches, C P Q)
        centers = fit_centers(patches.double().cpu().numpy(), self.config.codes, rng)
        self.codebook.copy_(torch.from_numpy(centers))

    def draw(self, outputs: Tensor, pixels: Tensor) -> Tensor | None:
        scale = self.config.scale.scale(pixels)
        return self.codebook[outputs.argmax(dim=2)] * scale.std + scale.mean
