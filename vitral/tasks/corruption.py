"""Which patches of an image a model must guess, and what stands in their place (appendix B.1.2).

B images, N patches, M of them corrupted, D width.
"""

from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CORRUPTED = 0.5  # of the patches
MASKED, SWAPPED = 0.8, 0.1  # of those; what is left is kept as it is, yet must be told like the others


class Corruption(NamedTuple):
    """What is done to the patches of a batch."""

    places: Tensor  # (B, M), the corrupted patches, each once
    sources: Tensor  # (B, N), whose embedding stands at each patch: its own, or another's of the same image
    masked: Tensor  # (B, N), whether the mask token stands there instead


def draw_corruption(images: int, patches: int, dice: np.random.Generator) -> Corruption:
    """For each image a draw of its own: always as many corrupted patches, each masked, swapped or kept by chance."""
    count = ceil(CORRUPTED * patches)
    own = np.tile(np.arange(patches), (images, 1))  # (B, N)
    places = dice.permuted(own, axis=1)[:, :count]  # (B, M)
    chance = dice.random((images, count))
    others = (places + dice.integers(1, patches, (images, count))) % patches  # (B, M), never the patch itself
    swapped = (chance >= MASKED) & (chance < MASKED + SWAPPED)
    sources, masked = own.copy(), np.zeros((images, patches), dtype=bool)
    np.put_along_axis(sources, places, np.where(swapped, others, places), axis=1)
    np.put_along_axis(masked, places, chance < MASKED, axis=1)
    return Corruption(torch.from_numpy(places), torch.from_numpy(sources), torch.from_numpy(masked))


def take(patches: Tensor, places: Tensor) -> Tensor:
    """The patches (B, N, D) at these places (B, M), in their order: (B, M, D)."""
    return patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2]))


def corrupt(patches: Tensor, corruption: Corruption, mask: Tensor) -> Tensor:
    """The embedded patches (B, N, D) with others or the mask token (D,) in the place of some."""
    return torch.where(corruption.masked[..., None], mask.to(patches.dtype), take(patches, corruption.sources))
