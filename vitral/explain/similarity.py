"""Which patches a model holds for alike.  N = R x S patch tokens, D width."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.explain.explanation import Array
from vitral.explain.principal import principal
from vitral.model.shapes import Grid

COLOURS = 3
DARK, LIGHT = 2.0, 98.0  # percentiles that become 0 and 1: a few strange tokens do not wash out the rest


@torch.no_grad()
def cosine_similarity(tokens: Tensor) -> Array:
    """The cosine of the angle between every two tokens (N, D), as (N, N); 0 for a token that is zero."""
    directions = F.normalize(tokens.double(), dim=1)  # (N, D)
    return (directions @ directions.mT).clamp(-1, 1).float().cpu().numpy()


def colours(tokens: Tensor, grid: Grid) -> Array:
    """Where each patch token (N, D) lies along the first three principal components, as red, green and blue (R, S, 3).

    Every colour runs from 0 to 1 over the image; one that has nothing to tell is 0.5 throughout.
    """
    places = principal(tokens, COLOURS).places.numpy()  # (N, at most 3)
    picture = np.full((grid.cells(), COLOURS), 0.5)  # (N, 3)
    if places.size:
        low, high = np.percentile(places, (DARK, LIGHT), axis=0)  # each (at most 3,)
        told = high > low  # not so where all patches but a few are the same
        picture[:, : len(low)][:, told] = ((places - low)[:, told] / (high - low)[told]).clip(0, 1)
    return picture.astype(np.float32).reshape(*grid, COLOURS)
