"""k-means clusters of features.  N images, D width, K clusters.

Features are scaled to unit length first, so that the squared distance is 2 - 2 times the cosine similarity. All is in
float64, from a seed, in a fixed order: the same features give the same clusters to the bit on the same machine.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.feature_space.neighbors import no_advance
from vitral.evaluation.knn import Features, normalize_rows

STARTS = 4  # of which the tightest result is kept
MAX_ROUNDS = 100
BLOCK = 2**14  # images whose distances are in memory at a time

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]


class Assignment(NamedTuple):
    """The nearest center of each image; of equally near ones the first."""

    labels: Labels  # (N,)
    distances: Rows  # (N,), squared


class Clusters(NamedTuple):
    """Clusters, the largest first."""

    centers: Rows  # (K, D)
    labels: Labels  # (N,), the cluster of each image
    distances: Rows  # (N,), squared, to its center
    rounds: int  # of the start that was kept
    converged: bool  # whether no image changed its cluster in the last round

    @property
    def inertia(self) -> float:
        """The sum of the squared distances, which k-means makes small."""
        return float(self.distances.sum())

    def similarities(self) -> Rows:
        """The cosine similarity of each image to its center (N,)."""
        lengths = np.sqrt(np.einsum("kd,kd->k", self.centers, self.centers))[self.labels]  # (N,)
        products = (1 + np.square(lengths) - self.distances) / 2  # of a unit vector with the center
        return (products / np.where(lengths > 0, lengths, 1)).clip(-1, 1)

    def members(self, cluster: int) -> Labels:
        """The images of a cluster, the most typical, which are nearest to its center, first."""
        inside = np.flatnonzero(self.labels == cluster)
        return inside[np.lexsort((inside, self.distances[inside]))]


def kmeans(features: Features, clusters: int, seed: int, advance: Callable[[int], None] = no_advance) -> Clusters:
    """The tightest of a few runs of k-means from k-means++ centers; `advance` is called after each run."""
    rows = normalize_rows(features)
    found = []
    for start in range(STARTS):
        rng = np.random.Generator(np.random.Philox([seed, start]))
        found.append(lloyd(rows, draw_centers(rows, clusters, rng)))
        advance(1)
    return largest_first(min(found, key=lambda each: each.inertia))  # of equals, min takes the first


def draw_centers(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Centers (K, D) by k-means++: images, each drawn in proportion to its squared distance from those before it."""
    chosen = [int(rng.integers(len(rows)))]
    nearest = squared_distances(rows, rows[chosen])[:, 0]  # (N,)
    while len(chosen) < count:
        bounds = nearest.cumsum()
        # Where all images are at a center, which copies do, the next ones are taken in order.
        index = int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right")) if bounds[-1] > 0 else len(chosen)
        chosen.append(min(index, len(rows) - 1))
        nearest = np.minimum(nearest, squared_distances(rows, rows[chosen[-1:]])[:, 0])
    return rows[chosen]


def lloyd(rows: Rows, centers: Rows) -> Clusters:
    """k-means of rows (N, D) from given centers (K, D). A cluster that loses all its images gets the farthest one."""
    labels, converged, rounds = np.full(len(rows), -1), False, 0
    found = assign(rows, centers)
    while not converged and rounds < MAX_ROUNDS:
        labels, rounds = found.labels, rounds + 1
        centers = mean_of_members(rows, found, len(centers))
        found = assign(rows, centers)
        converged = bool((found.labels == labels).all())
    return Clusters(centers, found.labels, found.distances, rounds, converged)


def assign(rows: Rows, centers: Rows) -> Assignment:
    """The nearest center of each row."""
    labels, distances = np.empty(len(rows), np.int64), np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        found = squared_distances(rows[block], centers)  # (n, K)
        labels[block] = found.argmin(axis=1)
        distances[block] = found.min(axis=1)
    return Assignment(labels, distances)


def squared_distances(rows: Rows, centers: Rows) -> Rows:
    """(n, K), never below zero."""
    lengths = np.einsum("nd,nd->n", rows, rows)[:, None] + np.einsum("kd,kd->k", centers, centers)  # (n, K)
    return (lengths - 2 * (rows @ centers.T)).clip(0)


def mean_of_members(rows: Rows, found: Assignment, count: int) -> Rows:
    """The mean of the images of each cluster (K, D); the farthest images of all for clusters without any."""
    sums, sizes = np.zeros((count, rows.shape[1])), np.bincount(found.labels, minlength=count)
    present = np.flatnonzero(sizes)
    order = np.argsort(found.labels, kind="stable")
    sums[present] = np.add.reduceat(rows[order], (sizes.cumsum() - sizes)[present], axis=0)
    centers = sums / np.maximum(sizes, 1)[:, None]
    if len(empty := np.flatnonzero(sizes == 0)):
        centers[empty] = rows[np.argsort(-found.distances, kind="stable")[: len(empty)]]
    return centers


def largest_first(found: Clusters) -> Clusters:
    """The clusters by size, those of one size by their first image, which numbers them the same in any order."""
    count = len(found.centers)
    sizes = np.bincount(found.labels, minlength=count)
    first = np.full(count, len(found.labels))
    np.minimum.at(first, found.labels, np.arange(len(found.labels)))
    order = np.lexsort((first, -sizes))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return found._replace(centers=found.centers[order], labels=place[found.labels])
