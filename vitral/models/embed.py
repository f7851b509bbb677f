"""Patch embedding (eq. 1), of pixels, of convolutions or of a ResNet's feature map (the hybrid of section 3.1).

B images, C channels, N = R x S patches of P x Q pixels, D width, c channels of a convolution.
"""

import math
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError
from vitral.models.activation import ActivationName, activate
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


class OverlappingPatches(Config):
    """A linear map of patches that overlap, since they are larger than the stride between them.

        z_i = E x_i + b,    x_i: the P x Q pixels around the i-th cell of `stride` pixels

    Pixels outside of the image are zeros. A token belongs to its cell, which is the middle of its patch.
    """

    kind: Literal["overlapping_patches"] = "overlapping_patches"
    patch: Size = Size(24, 24)
    stride: Size = Size(16, 16)

    @model_validator(mode="after")
    def patches_overlap(self) -> Self:
        if self.patch.height < self.stride.height or self.patch.width < self.stride.width:
            message = f"patches of {self.patch} leave out pixels at a stride of {self.stride}"
            hint = f"use a stride of at most {self.patch}"
            raise ConfigError(message, code="config.conflict", where="stride", hint=hint)
        return self

    def grid(self, image: Size) -> Grid:
        return patch_grid(image, self.stride, "cells")

    def token_size(self) -> Size:
        return self.stride

    def check(self, width: int) -> None:
        """Any width is supported."""

    def build(self, channels: int, context: BuildContext) -> "OverlappingStem":
        return OverlappingStem(self, channels, context)


class OverlappingStem(InitModule):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: OverlappingPatches, channels: int, context: BuildContext) -> None:
        super().__init__()
        down, right = (side - step for side, step in zip(config.patch, config.stride, strict=True))
        self.margin = (right // 2, right - right // 2, down // 2, down - down // 2)
        self.project = nn.Conv2d(channels, context.width, config.patch, config.stride)

    def initialize(self, init: BaseInit) -> None:
        initialize_convolution(init, self.project)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(F.pad(images, self.margin)).flatten(2).mT  # (B, N, D)


class ShiftedPatches(Config):
    """Shifted patch tokenization (arXiv 2112.13492): a patch sees half of its neighbors.

        z_i = E LN([x_i; s_1(x)_i; s_2(x)_i; s_3(x)_i; s_4(x)_i]) + b

    s_k shifts the image by half a patch to the upper left, upper right, lower left and lower right, with zeros where
    no pixels are.
    """

    kind: Literal["shifted_patches"] = "shifted_patches"
    patch: Size = Size(16, 16)

    def grid(self, image: Size) -> Grid:
        return patch_grid(image, self.patch)

    def token_size(self) -> Size:
        return self.patch

    def check(self, width: int) -> None:
        """Any width is supported."""

    def build(self, channels: int, context: BuildContext) -> "ShiftedStem":
        return ShiftedStem(self, channels, context)


SHIFTS = 5  # the image, and four shifts of it


def shift_images(images: Tensor, patch: Size) -> Tensor:
    """The images (B, C, H, W) and their four shifts by half a patch."""
    (height, width), (down, right) = images.shape[2:], (patch.height // 2, patch.width // 2)
    padded = F.pad(images, (right, right, down, down))  # (B, C, H + 2 down, W + 2 right)
    corners = [(2 * down, 2 * right), (2 * down, 0), (0, 2 * right), (0, 0)]
    shifted = [padded[:, :, top : top + height, left : left + width] for top, left in corners]
    return torch.cat([images, *shifted], dim=1)  # (B, 5 C, H, W)


class ShiftedStem(InitModule):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: ShiftedPatches, channels: int, context: BuildContext) -> None:
        super().__init__()
        self.patch = config.patch
        pixels = SHIFTS * channels * config.patch.height * config.patch.width
        self.before = context.build_norm(pixels)
        self.project = nn.Linear(pixels, context.width)

    def initialize(self, init: BaseInit) -> None:
        init.dense(self.project)

    def forward(self, images: Tensor) -> Tensor:
        patches = cut_patches(shift_images(images, self.patch), self.patch)  # (B, N, 5 C P Q)
        return self.project(self.before(patches))  # (B, N, D)


class Convolutions(Config):
    """Early convolutions (arXiv 2106.14881): 3x3 convolutions of stride 2, then a linear map to the width.

        x_k = activation(LN(W_k * x_k-1)), each half as high and wide;    z_i = E x_K,i + b

    LN, the norm of the model, is over the channels of a position. The paper has BatchNorm, which would make a step
    depend on how its batch is split into processes and microbatches. Without the norm, which hides how strong an edge
    is, x_k = activation(W_k * x_k-1 + b_k). A token sees twice the height and width of its cell, with the cell in the
    middle, and one cell more on every side for each convolution of stride 1.
    """

    kind: Literal["convolutions"] = "convolutions"
    widths: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (48, 96, 192, 384)
    same_size: int = Field(default=0, ge=0, le=8)  # 3x3 convolutions of stride 1 after them, of the last width
    norm: bool = True
    activation: ActivationName = "relu"

    @model_validator(mode="after")
    def cells_have_a_size(self) -> Self:
        if not 1 <= len(self.widths) <= MAX_CONVOLUTIONS:
            message = f"expected 1 to {MAX_CONVOLUTIONS} convolutions, got {len(self.widths)}"
            hint = "give the channels of each, such as [48, 96, 192, 384]"
            raise ConfigError(message, code="config.out_of_range", where="widths", hint=hint)
        return self

    @property
    def patch(self) -> Size:
        """The cell of a token."""
        return self.token_size()

    def grid(self, image: Size) -> Grid:
        return patch_grid(image, self.token_size(), "cells of the convolutions")

    def token_size(self) -> Size:
        return Size(2 ** len(self.widths), 2 ** len(self.widths))

    def check(self, width: int) -> None:
        """Any width is supported."""

    def build(self, channels: int, context: BuildContext) -> "ConvolutionStem":
        return ConvolutionStem(self, channels, context)


MAX_CONVOLUTIONS = 8
Margin = tuple[int, int, int, int]  # zeros left, right, above and below
ABOVE, BELOW, AROUND = (1, 0, 1, 0), (0, 1, 0, 1), (1, 1, 1, 1)


class ConvolutionLayer(InitModule):
    """A 3x3 convolution, a norm over its channels or a bias, and an activation: (B, c, H, W) to (B, c', H', W').

    With a stride of 2, all layers but the last pad above and left, the last below and right, so that a token sees as
    far on either side of its cell.
    """

    def __init__(self, channels: tuple[int, int], config: Convolutions, norm: nn.Module, margin: Margin) -> None:
        super().__init__()
        self.activation, self.margin = config.activation, margin
        self.conv = nn.Conv2d(*channels, 3, stride=1 if margin == AROUND else 2, bias=not config.norm)
        self.norm = norm

    def initialize(self, init: BaseInit) -> None:
        initialize_convolution(init, self.conv)
        if self.conv.bias is not None:  # no norm makes up for what the activation cuts off (arXiv 1502.01852)
            self.conv.weight.data.mul_(math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(self.conv(F.pad(x, self.margin)).permute(0, 2, 3, 1))  # (B, H', W', c')
        return activate(normed, self.activation).permute(0, 3, 1, 2)


class ConvolutionStem(InitModule):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: Convolutions, channels: int, context: BuildContext) -> None:
        super().__init__()
        widths = (*config.widths, *config.widths[-1:] * config.same_size)
        margins = [ABOVE] * (len(config.widths) - 1) + [BELOW] + [AROUND] * config.same_size
        self.layers = nn.Sequential(
            *(
                ConvolutionLayer(pair, config, context.build_norm(pair[1]) if config.norm else nn.Identity(), margin)
                for pair, margin in zip(pairwise((channels, *widths)), margins, strict=True)
            )
        )
        self.project = nn.Linear(config.widths[-1], context.width)

    def initialize(self, init: BaseInit) -> None:
        init.dense(self.project)

    def forward(self, images: Tensor) -> Tensor:
        cells = self.layers(images)  # (B, c, R, S)
        return self.project(cells.flatten(2).mT)  # (B, N, D)


def initialize_convolution(init: BaseInit, convolution: nn.Conv2d) -> None:
    init.convolution(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


class Palette(Config):
    """An embedding of the color of each pixel, the nearest of a palette (iGPT, Chen et al., ICML 2020).

        z_i = E_k,    k = argmin_j |x_i - p_j|^2

    A token is a pixel, so images are to be small. The palette is part of the weights. The task `igpt` computes it from
    the training images; before that its colors are spread over normalized values from -1 to 1.
    """

    kind: Literal["palette"] = "palette"
    colors: int = Field(default=512, ge=2, le=65_536)

    @property
    def patch(self) -> Size:
        """The pixel of a token."""
        return self.token_size()

    def grid(self, image: Size) -> Grid:
        return patch_grid(image, self.token_size(), "pixels")

    def token_size(self) -> Size:
        return Size(1, 1)

    def check(self, width: int) -> None:
        """Any width is supported."""

    def build(self, channels: int, context: BuildContext) -> "PaletteStem":
        return PaletteStem(self, channels, context)


def spread_colors(colors: int, channels: int) -> Tensor:
    """Colors (K, C) that are spread evenly over -1 to 1: multiples of irrational steps, modulo 2."""
    root = 2.0
    for _ in range(100):  # to the solution of x^(C + 1) = x + 1
        root = (1 + root) ** (1 / (channels + 1))
    steps = root ** -torch.arange(1, channels + 1, dtype=torch.float64)  # (C,)
    return (0.5 + torch.arange(1, colors + 1, dtype=torch.float64)[:, None] * steps) % 1 * 2 - 1


class PaletteStem(InitModule):
    """Images (B, C, H, W) to pixel tokens (B, N, D)."""

    palette: Tensor  # (K, C), in the units of normalized images

    def __init__(self, config: Palette, channels: int, context: BuildContext) -> None:
        super().__init__()
        self.register_buffer("palette", torch.empty(config.colors, channels))
        self.embed = nn.Embedding(config.colors, context.width)

    def initialize(self, init: BaseInit) -> None:
        self.palette.copy_(spread_colors(*self.palette.shape))
        init.embedding(self.embed.weight)

    def is_fitted(self) -> bool:
        """Whether the palette is another than the initial one."""
        initial = spread_colors(*self.palette.shape).to(self.palette)
        return not self.palette.is_meta and not torch.equal(self.palette, initial)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(self.codes(images))  # (B, N, D)

    @torch.no_grad()
    def codes(self, images: Tensor) -> Tensor:
        """The number of the color nearest to each pixel, (B, N); the first of those that are equally near.

        Channel by channel and in full precision, so that the code of a pixel never depends on its batch.
        """
        exact = images if images.dtype.itemsize >= torch.float32.itemsize else images.float()
        channels, palette = exact.flatten(2).unbind(dim=1), self.palette.to(exact.dtype)  # each (B, N), (K, C)
        offsets = (pixels[..., None] - colors for pixels, colors in zip(channels, palette.mT, strict=True))
        return reduce(add, (offset * offset for offset in offsets)).argmin(dim=2)  # of (B, N, K)

    def colors(self, codes: Tensor, grid: Grid) -> Tensor:
        """The images (B, C, H, W) of codes (B, N)."""
        return self.palette[codes].mT.unflatten(2, grid)


StemConfig = Annotated[Patches | Hybrid | Convolutions | OverlappingPatches | ShiftedPatches | Palette, OpenUnion()]


def describe_stem(stem: StemConfig) -> str:
    """What a token is made from: `patches of 16x16 pixels`."""
    match stem:
        case Patches():
            return f"patches of {stem.patch} pixels"
        case Hybrid():
            return f"patches of {stem.patch} positions of a ResNet feature map"
        case Convolutions():
            further = f" and {stem.same_size} of stride 1" * bool(stem.same_size)
            return f"cells of {stem.token_size()} pixels, by {len(stem.widths)} convolutions of stride 2{further}"
        case OverlappingPatches():
            return f"patches of {stem.patch} pixels that overlap, at a stride of {stem.stride}"
        case ShiftedPatches():
            return f"patches of {stem.patch} pixels of the image and of four shifts of it"
        case Palette():
            return f"pixels, each as the nearest of {stem.colors:,} colors"
        case _:
            return f"{stem.kind} of {stem.token_size()} pixels"


def projected_values(stem: StemConfig, channels: int) -> int:
    """How many numbers of an image with so many channels the last linear map of a stem makes one token from."""
    match stem:
        case Hybrid():
            return stem.pixels()
        case Convolutions():
            return stem.widths[-1]
        case ShiftedPatches():
            return SHIFTS * channels * stem.patch.height * stem.patch.width
        case _:
            return channels * stem.patch.height * stem.patch.width
