"""How far attention looks, in pixels of the image: what a receptive field is to a convolution (Fig. 7, right; D.7).

L layers, B images, T tokens, H heads, N = R x S patches.

Attention among cells of neighboring patches, where there are too many patches to show each.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.explanation.class_probability import eval_mode
from vitral.explanation.trace import has_attention, iterate_layers
from vitral.models.base import Grid, Layout, Model

MAX_CELLS = 16  # cells a side


def cell_grid(grid: Grid) -> Grid:
    """The grid of cells that stands for a grid of patches: the same, unless it has too many."""
    return Grid(min(grid.rows, MAX_CELLS), min(grid.columns, MAX_CELLS))


def pool_attention(attention: Tensor, layout: Layout, shown: Grid) -> Tensor:
    """Attention (..., T, T) among the cells of the shown grid (..., t, t); rows still sum to one.

    A cell looks as its patches look in the mean, and is looked at as much as its patches are together. Class token and
    registers stay as they are.
    """
    if shown == layout.grid:
        return attention
    summed = sum_cells(attention, layout, shown)  # (..., T, t)
    sizes = sum_cells(attention.new_ones(layout.length()), layout, shown)  # (t,), patches in each cell
    return sum_cells(summed.mT, layout, shown).mT / sizes[:, None]  # (..., t, t)


def sum_cells(values: Tensor, layout: Layout, shown: Grid) -> Tensor:
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


@torch.no_grad()
def mean_attention_distance(model: Model, batches: Iterable[Tensor]) -> Tensor:
    """The mean attention distance (L, H) over all images of all batches (B, C, H, W); no rows without attention."""
    if not has_attention(model):
        return torch.empty(0, 0)
    total, images = torch.zeros(()), 0
    with eval_mode(model):
        for batch in batches:
            size = Size(*batch.shape[2:])
            found = [attention_distance(step.attention(), step.layout, size) for step in iterate_layers(model, batch)]
            total = total + torch.stack(found).sum(dim=1, dtype=torch.float64).cpu()  # (L, H)
            images += len(batch)
    if not images:
        message = "no images to measure attention on"
        raise DataError(message, code="data.empty", where="images", hint="give at least one")
    return (total / images).float()


def attention_distance(attention: Tensor, layout: Layout, image: Size) -> Tensor:
    """How far the patches of each image look in each head (B, H), in pixels.

    For every patch it is the distance to the patches it looks at, weighted by how much it looks at each. Class token
    and registers have no place and are left out; a patch that looks at nothing else counts as looking at itself.
    """
    prefix, far = layout.prefix(), patch_distances(layout.grid, image).to(attention)  # (N, N)
    patches = attention[..., prefix:, prefix:]  # (B, H, N, N)
    seen = patches.sum(dim=-1).clamp(min=torch.finfo(attention.dtype).tiny)  # (B, H, N)
    return ((patches * far).sum(dim=-1) / seen).mean(dim=-1)


def patch_distances(grid: Grid, image: Size) -> Tensor:
    """The distance between the centers of every two patches (N, N), in pixels."""
    place = torch.arange(grid.cells())
    down = place // grid.columns * (image.height / grid.rows)  # (N,)
    right = place % grid.columns * (image.width / grid.columns)  # (N,)
    return torch.hypot(down[:, None] - down, right[:, None] - right)
