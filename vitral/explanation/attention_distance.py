"""Mean attention distance in pixels (Fig. 7, right; appendix D.7), and attention averaged into cells of patches.

L layers, B images, T tokens, H heads, N = R x S patches.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.explanation.trace import has_attention, iterate_layers
from vitral.models.base import Grid, Layout, Model
from vitral.models.hooks import eval_mode

MAX_CELLS = 16  # cells a side


def cell_grid(grid: Grid) -> Grid:
    """The grid of cells that is shown for a grid of patches: at most 16 x 16."""
    return Grid(min(grid.rows, MAX_CELLS), min(grid.columns, MAX_CELLS))


def pool_attention(attention: Tensor, layout: Layout, shown: Grid) -> Tensor:
    """Attention (..., T, T) averaged over the queries and summed over the keys of each cell (..., t, t).

    Rows still sum to one. Class token and registers are kept.
    """
    if shown == layout.grid:
        return attention
    summed = sum_cells(attention, layout, shown)  # (..., T, t)
    sizes = sum_cells(attention.new_ones(layout.length()), layout, shown)  # (t,), patches in each cell
    return sum_cells(summed.mT, layout, shown).mT / sizes[:, None]  # (..., t, t)


def sum_cells(values: Tensor, layout: Layout, shown: Grid) -> Tensor:
    """Values of tokens (..., T), summed over the patches of each cell (..., t)."""
    prefix, grid = layout.prefix(), layout.grid
    picture = values[..., prefix:].unflatten(-1, grid)  # (..., R, S)
    narrow = picture @ membership(grid.columns, shown.columns).to(values)  # (..., R, s)
    cells = membership(grid.rows, shown.rows).to(values).mT @ narrow  # (..., r, s)
    return torch.cat([values[..., :prefix], cells.flatten(-2)], dim=-1)


def membership(places: int, cells: int) -> Tensor:
    """One-hot rows (places, cells) that assign the places along a side evenly to cells."""
    cell = torch.arange(places) * cells // places  # (places,)
    return torch.nn.functional.one_hot(cell, cells)


@torch.no_grad()
def mean_attention_distance(model: Model, batches: Iterable[Tensor]) -> Tensor:
    """The mean attention distance (L, H) over all images of all batches (B, C, H, W); empty without attention."""
    if not has_attention(model):
        return torch.empty(0, 0)
    total, images = torch.zeros(()), 0
    with eval_mode(model):
        for batch in batches:
            size, steps = Size(*batch.shape[2:]), iterate_layers(model, batch)
            distances = [attention_distance(step.attention(), step.layout, size) for step in steps]
            total = total + torch.stack(distances).sum(dim=1, dtype=torch.float64).cpu()  # (L, H)
            images += len(batch)
    if not images:
        raise DataError("no images", code="data.empty", where="images", hint="pass at least one")
    return (total / images).float()


def attention_distance(attention: Tensor, layout: Layout, image: Size) -> Tensor:
    """The attention distance of each head (B, H), in pixels: distances between patches, weighted by attention.

    Class token and registers have no position and are left out.
    """
    grid, prefix, place = layout.grid, layout.prefix(), torch.arange(layout.grid.cells())
    down = place // grid.columns * (image.height / grid.rows)  # (N,), in pixels
    right = place % grid.columns * (image.width / grid.columns)  # (N,)
    between = torch.hypot(down[:, None] - down, right[:, None] - right).to(attention)  # (N, N)
    patches = attention[..., prefix:, prefix:]  # (B, H, N, N)
    total = patches.sum(dim=-1).clamp(min=torch.finfo(attention.dtype).tiny)  # (B, H, N)
    return ((patches * between).sum(dim=-1) / total).mean(dim=-1)
