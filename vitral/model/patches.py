"""Patches: an image cut into words (eq. 1).

B images, C channels, P x Q pixels a patch, R x S patches, N = R S, D width.
A flattened patch has one of two orders: ours and a convolution's is "cpq" (channels outermost); vit-pytorch's is "pqc".
"""

from typing import Literal

from torch import Tensor, nn

from vitral.config import Config, Size
from vitral.model.initial import Initial, Initialised
from vitral.model.shapes import Grid, Whole, divide

Order = Literal["cpq", "pqc"]


def cut_patches(images: Tensor, patch: Size, order: Order = "cpq") -> Tensor:
    """Every patch of every image as one vector."""
    grid = divide(Size(*images.shape[-2:]), patch)
    columns = images.unflatten(3, (grid.columns, patch.width))  # (B, C, H, S, Q)
    tiles = columns.unflatten(2, (grid.rows, patch.height))  # (B, C, R, P, S, Q)
    axes = (0, 2, 4, 1, 3, 5) if order == "cpq" else (0, 2, 4, 3, 5, 1)
    return tiles.permute(axes).flatten(3).flatten(1, 2)  # (B, N, C P Q)


def join_patches(patches: Tensor, grid: Grid, patch: Size) -> Tensor:
    """The images that `cut_patches` cut in "cpq" order."""
    tiles = patches.unflatten(2, (-1, *patch)).unflatten(1, grid)  # (B, R, S, C, P, Q)
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)  # (B, C, R P, S Q)


def kernel_to_linear(kernel: Tensor, order: Order = "cpq") -> Tensor:
    """The linear map on flattened patches that equals a strided convolution with this kernel (D, C, P, Q)."""
    return kernel.flatten(1) if order == "cpq" else kernel.permute(0, 2, 3, 1).flatten(1)  # (D, C P Q)


def linear_to_kernel(weight: Tensor, patch: Size, order: Order = "cpq") -> Tensor:
    """The convolution kernel that equals a linear map on flattened patches."""
    if order == "cpq":
        return weight.unflatten(1, (-1, *patch))  # (D, C, P, Q)
    return weight.unflatten(1, (*patch, -1)).permute(0, 3, 1, 2)  # (D, C, P, Q)


class Patches(Config):
    """Flattened patches through one linear map: the paper's stem."""

    kind: Literal["patches"] = "patches"
    patch: Size = Size(16, 16)
    norm: Literal["none", "both"] = "none"  # vit-pytorch normalises before and after the map
    bias: bool = True  # CLIP's map has none

    def grid(self, image: Size) -> Grid:
        return divide(image, self.patch)

    def check(self, width: int) -> None:
        """Any width will do."""

    def build(self, channels: int, whole: Whole) -> "PatchStem":
        return PatchStem(self, channels, whole)


class PatchStem(Initialised):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: Patches, channels: int, whole: Whole) -> None:
        super().__init__()
        self.patch = config.patch
        pixels = channels * config.patch.height * config.patch.width
        both = config.norm == "both"
        self.before = nn.LayerNorm(pixels, whole.eps) if both else nn.Identity()
        self.project = nn.Linear(pixels, whole.width, bias=config.bias)
        self.after = nn.LayerNorm(whole.width, whole.eps) if both else nn.Identity()

    def initialise(self, initial: Initial) -> None:
        initial.dense(self.project)

    def forward(self, images: Tensor) -> Tensor:
        patches = cut_patches(images, self.patch)  # (B, N, C P Q)
        return self.after(self.project(self.before(patches)))  # (B, N, D)
