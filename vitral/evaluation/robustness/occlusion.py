"""Images with cells dropped or shuffled (arXiv 2105.10497).

B images, C channels, H rows, W columns, N cells, numbered row by row. Images are (B, C, H, W).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.config import Size
from vitral.core.rng import Purpose, uniform_for

SHUFFLES = (Size(2, 2), Size(2, 4), Size(4, 4), Size(4, 8), Size(8, 8), Size(14, 14), Size(16, 16))
DROPPED = tuple(step / 10 for step in range(10))  # shares of the cells
MIN_CELL = 2  # pixels of the side of a shuffled cell


def occlusion_grid(image: Size) -> Size:
    """14 x 14 cells as in the original, or fewer so that a cell has at least 4 x 4 pixels."""
    return Size(*(max(1, min(14, side // 4)) for side in image))


def shuffle_grids(image: Size) -> list[Size]:
    """The grids of the original whose cells have at least 2 x 2 pixels."""
    return [
        grid for grid in SHUFFLES if image.height >= MIN_CELL * grid.height and image.width >= MIN_CELL * grid.width
    ]


def cell_numbers(image: Size, grid: Size) -> Tensor:
    """The cell of each pixel (H, W); sides that do not divide make cells of two sizes."""
    row, column = (
        torch.arange(side) * cells // side for side, cells in zip(image, grid, strict=True)
    )  # rows and columns of cells
    return row[:, None] * grid.width + column


def random_orders(seed: int, purpose: int, indices: NDArray[np.int64], count: int) -> Tensor:
    """A random order of so many cells for each image (B, N), from the seed and the index of the image."""
    drawn = uniform_for(seed, Purpose.ROBUSTNESS, np.full(len(indices), purpose), indices, count)
    return torch.from_numpy(drawn.argsort(axis=1))


def drop_cells(images: Tensor, orders: Tensor, share: float, cells: Tensor) -> Tensor:
    """The images without the first cells of each order (B, N): black there. The number is rounded down."""
    count = int(share * orders.shape[1] + 1e-9)
    dropped = torch.zeros_like(orders, dtype=torch.bool).scatter_(1, orders[:, :count], True)  # (B, N)
    return images.masked_fill(dropped[:, cells][:, None].to(images.device), 0)


def shuffle_cells(images: Tensor, orders: Tensor, grid: Size) -> Tensor:
    """The cells of each image in another order (B, N). Rows and columns that do not divide stay at the end."""
    height, width = images.shape[-2] // grid.height, images.shape[-1] // grid.width
    inner = images[..., : grid.height * height, : grid.width * width]
    cells = inner.unflatten(-1, (grid.width, width)).unflatten(-3, (grid.height, height))  # (B, C, R, h, K, w)
    flat = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, N, C, h, w)
    moved = flat[torch.arange(len(flat))[:, None], orders.to(flat.device)].unflatten(1, grid)  # (B, R, K, C, h, w)
    found = images.clone()
    found[..., : inner.shape[-2], : inner.shape[-1]] = moved.permute(0, 3, 1, 4, 2, 5).flatten(-2).flatten(-3, -2)
    return found


def salient_orders(gradients: Tensor, cells: Tensor) -> Tensor:
    """The cells of each image (B, N) from the most salient on: those with the largest mean gradient of its pixels."""
    strength = gradients.abs().sum(dim=1).flatten(1).double().cpu()  # (B, H W)
    number = cells.flatten()
    count = int(number.max()) + 1
    sums = torch.zeros(len(strength), count, dtype=torch.float64).index_add_(1, number, strength)
    return (sums / number.bincount(minlength=count)).argsort(dim=1, descending=True, stable=True)
