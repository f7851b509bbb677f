"""Attention among cells of neighbouring patches, where there are too many patches to show each.

T tokens (prefix + R x S patches), t tokens that are shown (prefix + r x s cells).
"""

import torch
from torch import Tensor

from vitral.model.shapes import Grid, Layout

MOST = 16  # cells a side


def shown_grid(grid: Grid) -> Grid:
    """The grid of cells that stands for a grid of patches: the same, unless it has too many."""
    return Grid(min(grid.rows, MOST), min(grid.columns, MOST))


def coarse(attention: Tensor, layout: Layout, shown: Grid) -> Tensor:
    """Attention (..., T, T) among the cells of the shown grid (..., t, t); rows still sum to one.

    A cell looks as its patches look in the mean, and is looked at as much as its patches are together. Class token and
    registers stay as they are.
    """
    if shown == layout.grid:
        return attention
    summed = among_cells(attention, layout, shown)  # (..., T, t)
    sizes = among_cells(attention.new_ones(layout.length()), layout, shown)  # (t,), patches in each cell
    return among_cells(summed.mT, layout, shown).mT / sizes[:, None]  # (..., t, t)


def among_cells(values: Tensor, layout: Layout, shown: Grid) -> Tensor:
    """Values of the tokens (..., T), those of the patches of a cell summed (..., t)."""
    prefix, grid = layout.prefix(), layout.grid
    picture = values[..., prefix:].unflatten(-1, grid)  # (..., R, S)
    narrow = picture @ membership(grid.columns, shown.columns).to(values)  # (..., R, s)
    cells = membership(grid.rows, shown.rows).to(values).mT @ narrow  # (..., r, s)
    return torch.cat([values[..., :prefix], cells.flatten(-2)], dim=-1)


def membership(places: int, cells: int) -> Tensor:
    """Which of the cells, as even as can be, each place along a side belongs to: a one in each row (places, cells)."""
    cell = torch.arange(places) * cells // places  # (places,)
    return torch.nn.functional.one_hot(cell, cells)
