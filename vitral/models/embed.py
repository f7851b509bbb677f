"""Patch embedding (eq. 1), of pixels or of a ResNet's feature map (the hybrid of section 3.1).

B images, C channels, N = R x S patches of P x Q pixels, D width.
"""

import math
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError
from vitral.models.base import BuildContext, Grid, patch_grid
from vitral.models.init import BaseInit, InitModule
from vitral.models.resnet import BaseResnet, Layers, ResnetBody


def cut_patches(images: Tensor, patch: Size) -> Tensor:
    """Flatten each patch of the images (B, C, H, W)."""
    grid = patch_grid(Size(*images.shape[-2:]), patch)
    columns = images.unflatten(3, (grid.columns, patch.width))  # (B, C, H, S, Q)
    tiles = columns.unflatten(2, (grid.rows, patch.height))  # (B, C, R, P, S, Q)
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, C P Q)


def join_patches(patches: Tensor, grid: Grid, patch: Size) -> Tensor:
    """The images (B, C, H, W) of flattened patches (B, N, C P Q): undoes `cut_patches`."""
    tiles = patches.unflatten(2, (-1, *patch)).unflatten(1, (grid.rows, grid.columns))  # (B, R, S, C, P, Q)
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)  # (B, C, H, W)


def kernel_to_linear(kernel: Tensor) -> Tensor:
    """The linear map on flattened patches that equals a strided convolution with this kernel (D, C, P, Q)."""
    return kernel.flatten(1)  # (D, C P Q)


def linear_to_kernel(weight: Tensor, patch: Size) -> Tensor:
    """The convolution kernel that equals a linear map on flattened patches."""
    return weight.unflatten(1, (-1, *patch))  # (D, C, P, Q)


class Patches(Config):
    """A linear map of flattened patches, as in the paper."""

    kind: Literal["patches"] = "patches"
    patch: Size = Size(16, 16)
    norm: Literal["none", "after", "both"] = "none"  # both: before and after the map, as in vit-pytorch
    bias: bool = True  # CLIP has none
    # Of an image that the patch does not divide; other libraries crop it, or pad it with zeros.
    remainder: Literal["refuse", "crop", "pad"] = "refuse"

    def grid(self, image: Size) -> Grid:
        return patch_grid(self.covered(image), self.patch)

    def covered(self, image: Size) -> Size:
        """The size of the image after its remainder is cropped or padded."""
        if self.remainder == "refuse" or image.height < self.patch.height or image.width < self.patch.width:
            return image
        count = math.floor if self.remainder == "crop" else math.ceil
        return Size(*(count(side / step) * step for side, step in zip(image, self.patch, strict=True)))

    def token_size(self) -> Size:
        """The pixels that one token covers."""
        return self.patch

    def check(self, width: int) -> None:
        """Any width is supported."""

    def build(self, channels: int, context: BuildContext) -> "PatchStem":
        return PatchStem(self, channels, context)


class PatchStem(InitModule):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: Patches, channels: int, context: BuildContext) -> None:
        super().__init__()
        self.config, self.patch = config, config.patch
        pixels = channels * config.patch.height * config.patch.width
        self.before = context.build_norm(pixels) if config.norm == "both" else nn.Identity()
        self.project = nn.Linear(pixels, context.width, bias=config.bias)
        self.after = context.build_norm() if config.norm != "none" else nn.Identity()

    def initialize(self, init: BaseInit) -> None:
        init.dense(self.project)

    def forward(self, images: Tensor) -> Tensor:
        patches = cut_patches(self.fit(images), self.patch)  # (B, N, C P Q)
        return self.after(self.project(self.before(patches)))  # (B, N, D)

    def fit(self, images: Tensor) -> Tensor:
        """The images without the remainder that the patch does not divide, or padded to a whole patch."""
        height, width = images.shape[2:]
        rows, columns = self.config.covered(Size(height, width))
        if (rows, columns) == (height, width):
            return images
        return F.pad(images, (0, max(0, columns - width), 0, max(0, rows - height)))[:, :, :rows, :columns]


class Hybrid(BaseResnet):
    """Patches of a ResNet's feature map, usually 1x1.

    The paper has two forms: all four stages, (3, 4, 6, 3), or the fourth merged into the third for four times as many
    tokens, (3, 4, 9).
    """

    kind: Literal["hybrid"] = "hybrid"
    layers: Layers = (3, 4, 9)
    patch: Size = Size(1, 1)
    project: bool = True  # false uses the feature map as it is, if it has the model's width

    def token_size(self) -> Size:
        return Size(self.stride() * self.patch.height, self.stride() * self.patch.width)

    def pixels(self) -> int:
        """Values in one patch of the feature map."""
        return self.out_channels() * self.patch.height * self.patch.width

    def check(self, width: int) -> None:
        if not self.project and self.pixels() != width:
            message = f"without a projection the width must be that of the feature map, {self.pixels()}, not {width}"
            hint = f"set it to true, or width={self.pixels()}"
            raise ConfigError(message, code="config.conflict", where="stem.project", hint=hint)

    def build(self, channels: int, context: BuildContext) -> "HybridStem":
        return HybridStem(self, channels, context)


class HybridStem(InitModule):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: Hybrid, channels: int, context: BuildContext) -> None:
        super().__init__()
        self.patch = config.patch
        self.body = ResnetBody(config, channels)
        self.project = nn.Linear(config.pixels(), context.width) if config.project else nn.Identity()

    def initialize(self, init: BaseInit) -> None:
        if isinstance(self.project, nn.Linear):
            init.dense(self.project)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(cut_patches(self.body(images), self.patch))  # (B, N, D)


StemConfig = Annotated[Patches | Hybrid, OpenUnion()]
