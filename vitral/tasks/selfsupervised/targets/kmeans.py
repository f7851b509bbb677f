"""k-means: centers that stand for many points.  n points, K centers, d coordinates."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.errors import ConfigError
from vitral.tasks.task import full_precision

ROUNDS = 10
ROWS = 4096  # points whose distances to all centers are in memory at once

Points = NDArray[np.float64]  # (n, d)


def fit_centers(points: Points, count: int, rng: np.random.Generator, rounds: int = ROUNDS) -> Points:
    """The centers (K, d) of points after some rounds of Lloyd's algorithm, which starts from random different points.

    A center that no point is nearest to stays where it is.
    """
    different = np.unique(points, axis=0)
    if len(different) < count:
        message = f"{count:,} centers were asked for, but the training images have {len(different):,} different points"
        hint = f"use at most {len(different):,}, or more images"
        raise ConfigError(message, code="config.out_of_range", where="task", hint=hint)
    centers = different[np.sort(rng.permutation(len(different))[:count])]
    for _ in range(rounds):
        own = _nearest(points, centers)  # (n,)
        numbers = np.bincount(own, minlength=count)  # (K,)
        sums = np.stack([np.bincount(own, weights=axis, minlength=count) for axis in points.T], axis=1)  # (K, d)
        centers = np.where(numbers[:, None] > 0, sums / np.maximum(numbers, 1)[:, None], centers)
    return centers


def _nearest(points: Points, centers: Points) -> NDArray[np.int64]:
    """The center nearest to each point."""
    half = np.square(centers).sum(axis=1) / 2  # (K,)
    parts = [(points[start : start + ROWS] @ centers.T - half).argmax(axis=1) for start in range(0, len(points), ROWS)]
    return np.concatenate(parts)


def nearest_centers(points: Tensor, centers: Tensor) -> Tensor:
    """The numbers (...) of the centers (K, d) nearest to points (..., d), in full precision."""
    with torch.autocast(points.device.type, enabled=False):
        values, middle = full_precision(points), full_precision(centers)
        return (values @ middle.mT - middle.square().sum(dim=1) / 2).argmax(dim=-1)
