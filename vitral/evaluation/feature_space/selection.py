"""A subset of images that covers all of them.  N images, D width."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.feature_space.kmeans import squared_distances
from vitral.evaluation.feature_space.neighbors import no_advance
from vitral.evaluation.knn import Features, normalize_rows


class Selection(NamedTuple):
    """The chosen images in the order of choice, of which any first part is a choice of its own."""

    chosen: NDArray[np.int64]  # (n,)
    nearest: NDArray[np.int64]  # (N,), the chosen image that is nearest to each image
    distances: NDArray[np.float64]  # (N,), to it: 1 - cosine similarity


def farthest_point(features: Features, count: int, advance: Callable[[int], None] = no_advance) -> Selection:
    """Choose `count` images, each the one that is farthest from all those before it (Gonzalez 1985; k-center greedy).

    The first is the one nearest to the mean. The farthest image from its nearest chosen one is at most twice as far as
    with the best possible choice; nothing is drawn at random, and there is no parameter to set.
    """
    rows = normalize_rows(features)
    mean = rows.mean(axis=0, keepdims=True)
    chosen = [int(squared_distances(rows, mean)[:, 0].argmin())]
    nearest, closest = squared_distances(rows, rows[chosen])[:, 0], np.zeros(len(rows), np.int64)
    nearest[chosen[0]] = -1.0  # never chosen again, even if all others are copies
    advance(1)
    while len(chosen) < min(count, len(rows)):
        chosen.append(int(nearest.argmax()))  # of equals the first
        distances = squared_distances(rows, rows[chosen[-1:]])[:, 0]
        closer = distances < nearest
        nearest, closest = np.where(closer, distances, nearest), np.where(closer, len(chosen) - 1, closest)
        nearest[chosen[-1]], closest[chosen[-1]] = -1.0, len(chosen) - 1
        advance(1)
    order = np.array(chosen)
    return Selection(order, order[closest], nearest.clip(0) / 2)


def coverage(features: Features, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 - cosine similarity of each image to the nearest of some chosen ones (N,)."""
    rows = normalize_rows(features)
    nearest = np.full(len(rows), np.inf)
    for index in chosen:
        nearest = np.minimum(nearest, squared_distances(rows, rows[index : index + 1])[:, 0])
    return nearest / 2
