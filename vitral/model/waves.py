"""Sines and cosines of places: pure functions behind the fixed and the rotary positions.

R x S patches, N = R S, D width, d head width.  `like` gives the device and, but for angles, the type of the result.
"""

import math

import torch
from torch import Tensor

from vitral.model.shapes import Grid


def sincos_1d(count: int, width: int, like: Tensor) -> Tensor:
    """Row p holds sin and cos of p / 10000^(2i/D), interleaved (arXiv 1706.03762, section 3.5)."""
    places = torch.arange(count, device=like.device, dtype=torch.float32)
    rates = 10000 ** -(torch.arange(0, width, 2, device=like.device) / width)  # (D/2)
    angles = places[:, None] * rates  # (count, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like.dtype)  # (count, D)


def sincos_2d(grid: Grid, width: int, like: Tensor) -> Tensor:
    """Sines then cosines of the column, sines then cosines of the row, a quarter of the width each, as big_vision."""
    rates = 10000 ** -torch.linspace(0, 1, width // 4, device=like.device)  # (D/4)
    right = torch.arange(grid.columns, device=like.device)[:, None] * rates  # (S, D/4)
    down = torch.arange(grid.rows, device=like.device)[:, None] * rates  # (R, D/4)
    x = torch.cat([right.sin(), right.cos()], dim=-1).expand(grid.rows, -1, -1)  # (R, S, D/2)
    y = torch.cat([down.sin(), down.cos()], dim=-1)[:, None].expand(-1, grid.columns, -1)  # (R, S, D/2)
    return torch.cat([x, y], dim=-1).flatten(0, 1).to(like.dtype)  # (N, D)


def rotary_angles(grid: Grid, head_width: int, base: float, like: Tensor) -> Tensor:
    """The angle of every patch in every plane: the image runs from -1 to 1 on both axes, whatever its grid."""
    quarter = head_width // 4
    periods = base ** (torch.arange(quarter, device=like.device) / quarter)  # (d/4)
    down = (torch.arange(grid.rows, device=like.device) + 0.5) / grid.rows * 2 - 1  # (R), patch centres
    right = (torch.arange(grid.columns, device=like.device) + 0.5) / grid.columns * 2 - 1  # (S)
    rows = (2 * math.pi * down[:, None] / periods)[:, None].expand(-1, grid.columns, -1)  # (R, S, d/4)
    columns = (2 * math.pi * right[:, None] / periods).expand(grid.rows, -1, -1)  # (R, S, d/4)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)  # (N, d/2)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Each pair (x_i, x_{i + d/2}) turned by its angle."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # each (N, d/2)
    first, second = x.chunk(2, dim=-1)  # each (..., N, d/2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)  # (..., N, d)
