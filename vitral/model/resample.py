"""Position tables stretched to another grid.

Google's code zooms with scipy (order 1), which is bilinear with the corners aligned.
Hugging Face's ViT and DINOv2 stretch bicubically with the edges aligned; timm, and DINOv2 with registers, do that with
anti-aliasing. torchvision aligns the corners. Facebook's own DINO and DINOv2 ask for a tenth of a patch more than they
keep, and so shift every row a little.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.model.shapes import Grid

Resampling = Literal["bilinear", "bicubic", "bicubic_antialias", "bicubic_corners", "bicubic_offset"]
OFFSET = 0.1  # of a patch


def resample_grid(table: Tensor, old: Grid, new: Grid, how: Resampling = "bilinear") -> Tensor:
    """A table of one row a patch (..., rows * columns, D), stretched from the old grid to the new one."""
    if old == new:
        return table
    image = table.unflatten(-2, old).movedim(-1, -3)  # (..., D, rows, columns)
    exact = image if image.dtype == torch.float64 else image.float()  # not every kernel takes half precision
    stack = stretch(exact.reshape(1, -1, *old), new, how).to(table.dtype)  # every channel is stretched alone
    return stack.reshape(*image.shape[:-2], *new).movedim(-3, -1).flatten(-3, -2)  # (..., new rows * columns, D)


def stretch(stack: Tensor, new: Grid, how: Resampling) -> Tensor:
    """Images (1, channels, rows, columns) of another grid."""
    if how == "bilinear":
        return F.interpolate(stack, size=new, mode="bilinear", align_corners=True)
    if how == "bicubic":
        return F.interpolate(stack, size=new, mode="bicubic", align_corners=False)
    if how == "bicubic_corners":
        return F.interpolate(stack, size=new, mode="bicubic", align_corners=True)
    if how == "bicubic_offset":
        factors = [(side + OFFSET) / before for side, before in zip(new, stack.shape[-2:], strict=True)]
        return F.interpolate(stack, scale_factor=factors, mode="bicubic", align_corners=False)
    if new.columns == 1:  # torch 2.13 gets a single anti-aliased column wrong, and a single row right
        return F.interpolate(stack.mT, size=new[::-1], mode="bicubic", align_corners=False, antialias=True).mT
    return F.interpolate(stack, size=new, mode="bicubic", align_corners=False, antialias=True)


def resample_line(table: Tensor, new: int, how: Resampling = "bilinear") -> Tensor:
    """A table of one row a place along one axis (..., places, D), stretched to another number of places."""
    return resample_grid(table, Grid(table.shape[-2], 1), Grid(new, 1), how)
