"""How far attention looks, in pixels of the image: what a receptive field is to a convolution (Fig. 7, right; D.7).

L layers, B images, T tokens, H heads, N = R x S patches.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitral.config import Size
from vitral.errors import DataError
from vitral.explain.asking import resting
from vitral.explain.walk import attends, layers_of
from vitral.model.contract import Model
from vitral.model.shapes import Grid, Layout


@torch.no_grad()
def mean_distances(model: Model, batches: Iterable[Tensor]) -> Tensor:
    """The mean attention distance (L, H) over all images of all batches (B, C, H, W); no rows without attention."""
    if not attends(model):
        return torch.empty(0, 0)
    total, images = torch.zeros(()), 0
    with resting(model):
        for batch in batches:
            size = Size(*batch.shape[2:])
            found = [distances(step.attention(), step.layout, size) for step in layers_of(model, batch)]
            total = total + torch.stack(found).sum(dim=1, dtype=torch.float64).cpu()  # (L, H)
            images += len(batch)
    if not images:
        what = "no images to measure attention on"
        raise DataError(what, code="data.empty", where="images", remedy="give at least one")
    return (total / images).float()


def distances(attention: Tensor, layout: Layout, image: Size) -> Tensor:
    """How far the patches of each image look in each head (B, H), in pixels.

    For every patch it is the distance to the patches it looks at, weighted by how much it looks at each. Class token
    and registers have no place and are left out; a patch that looks at nothing else counts as looking at itself.
    """
    prefix, far = layout.prefix(), steps_between(layout.grid, image).to(attention)  # (N, N)
    patches = attention[..., prefix:, prefix:]  # (B, H, N, N)
    seen = patches.sum(dim=-1).clamp(min=torch.finfo(attention.dtype).tiny)  # (B, H, N)
    return ((patches * far).sum(dim=-1) / seen).mean(dim=-1)


def steps_between(grid: Grid, image: Size) -> Tensor:
    """The distance between the centres of every two patches (N, N), in pixels."""
    place = torch.arange(grid.cells())
    down = place // grid.columns * (image.height / grid.rows)  # (N,)
    right = place % grid.columns * (image.width / grid.columns)  # (N,)
    return torch.hypot(down[:, None] - down, right[:, None] - right)
