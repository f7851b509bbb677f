"""Resampling of tables of positions to other grids.  D width."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.core.errors import ConfigError
from vitral.models.base import Grid

# Corners are aligned by `bilinear` and `bicubic_corners`, the centers of pixels by the others.
# slice: the first rows of the table for a grid of fewer patches, as in vit-pytorch; there are none for more patches.
Resampling = Literal[
    "bilinear", "bilinear_centers", "bilinear_antialias", "bicubic", "bicubic_antialias", "bicubic_corners",
    "bicubic_offset", "slice",
]  # fmt: skip
OFFSET = 0.1  # of a patch, as in DINO


def resample_grid(table: Tensor, old: Grid, new: Grid, how: Resampling = "bilinear") -> Tensor:
    """Resample a table of one row per patch (..., rows * columns, D) from the old grid to the new one."""
    if old == new:
        return table
    if how == "slice":
        return first_rows(table, old, new)
    image = table.unflatten(-2, old).movedim(-1, -3)  # (..., D, rows, columns)
    exact = image if image.dtype == torch.float64 else image.float()  # not every kernel takes half precision
    resized = interpolate(exact.reshape(1, -1, *old), new, how).to(table.dtype)  # each channel separately
    return resized.reshape(*image.shape[:-2], *new).movedim(-3, -1).flatten(-3, -2)  # (..., new rows * columns, D)


def first_rows(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """The rows for the first patches in reading order, whatever their place on the new grid."""
    if new.cells() > old.cells():
        message = f"{new} patches need more positions than the {old.cells()} of this model, which are not resampled"
        hint = "use smaller images, or set position.resampling=bilinear"
        raise ConfigError(message, code="config.size_mismatch", where="image_size", hint=hint)
    return table[..., : new.cells(), :]


def interpolate(stack: Tensor, new: Grid, how: Resampling) -> Tensor:
    """Resize (1, channels, rows, columns) to another grid."""
    if how in ("bilinear", "bicubic_corners"):
        return F.interpolate(stack, size=new, mode=how.removesuffix("_corners"), align_corners=True)
    if how in ("bicubic", "bilinear_centers"):
        return F.interpolate(stack, size=new, mode=how.removesuffix("_centers"), align_corners=False)
    if how == "bicubic_offset":
        factors = [(side + OFFSET) / before for side, before in zip(new, stack.shape[-2:], strict=True)]
        return F.interpolate(stack, scale_factor=factors, mode="bicubic", align_corners=False)
    mode = how.removesuffix("_antialias")
    if new.columns == 1:  # torch 2.13 gets a single anti-aliased column wrong, and a single row right
        return F.interpolate(stack.mT, size=new[::-1], mode=mode, align_corners=False, antialias=True).mT
    return F.interpolate(stack, size=new, mode=mode, align_corners=False, antialias=True)


def resample_axis(table: Tensor, new: int, how: Resampling = "bilinear") -> Tensor:
    """Resample a table of one row per index along one axis (..., count, D)."""
    return resample_grid(table, Grid(table.shape[-2], 1), Grid(new, 1), how)
