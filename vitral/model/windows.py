"""Windows of a grid: rows, columns and squares of patches are all windows.

B images, H heads, N = R x S patches, d head width, G windows of n = r x s patches.
"""

import torch
from torch import Tensor

from vitral.model.shapes import Grid


def split_windows(x: Tensor, grid: Grid, window: Grid) -> Tensor:
    """Patches of each window side by side."""
    tiles = x.unflatten(2, (grid.rows // window.rows, window.rows, grid.columns // window.columns, window.columns))
    return tiles.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)  # (B G, H, n, d)


def join_windows(x: Tensor, grid: Grid, window: Grid) -> Tensor:
    """Patches back in reading order."""
    down, right = grid.rows // window.rows, grid.columns // window.columns
    tiles = x.unflatten(2, window).unflatten(0, (-1, down, right))  # (B, R/r, S/s, H, r, s, d)
    return tiles.permute(0, 3, 1, 4, 2, 5, 6).flatten(2, 5)  # (B, H, N, d)


def same_window(grid: Grid, window: Grid) -> Tensor:
    """Whether two patches share a window."""
    place = torch.arange(grid.cells())
    row, column = place // grid.columns // window.rows, place % grid.columns // window.columns  # each (N)
    return (row[:, None] == row) & (column[:, None] == column)  # (N, N)
