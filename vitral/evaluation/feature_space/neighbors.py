"""The nearest images by cosine similarity: exact, or with an index of faiss.

Q queries, N images, D width, k neighbors.
"""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.imports import load_faiss
from vitral.evaluation.knn import Features, normalize_rows

CHUNK = 2**23  # similarities in memory at a time: 64 MB
BLOCK = 2**16  # images whose features are held in float64 at a time


class Neighbors(NamedTuple):
    """The k nearest images of each query, nearest first; of equally near ones the first comes first."""

    indices: NDArray[np.int64]  # (Q, k)
    scores: NDArray[np.float64]  # (Q, k), cosine similarities, from -1 to 1

    def first(self, queries: int) -> "Neighbors":
        """Those of the first queries."""
        return Neighbors(self.indices[:queries], self.scores[:queries])


def no_advance(count: int) -> None:
    """Nobody waits for the progress."""


class ExactSearch:
    """Compares every query with every image, in float64."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def find(self, queries: Features, k: int, advance: Callable[[int], None] = no_advance) -> Neighbors:
        """The k nearest images of each query (Q, D); `advance` is called with the number of queries that are done."""
        k = min(k, len(self.features))
        rows = max(1, CHUNK // min(BLOCK, max(1, len(self.features))))
        found = []
        for start in range(0, len(queries), rows):
            found.append(self._find(normalize_rows(queries[start : start + rows]), k))
            advance(len(found[-1].indices))
        empty = Neighbors(np.zeros((0, k), np.int64), np.zeros((0, k)))
        return Neighbors(*map(np.concatenate, zip(empty, *found, strict=True)))

    def _find(self, queries: NDArray[np.float64], k: int) -> Neighbors:
        best = Neighbors(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0)))
        for first in range(0, len(self.features), BLOCK):
            keys = normalize_rows(self.features[first : first + BLOCK])  # (n, D)
            scores = (queries @ keys.T).clip(-1, 1)  # (Q, n), which rounding may exceed
            indices = np.broadcast_to(np.arange(first, first + len(keys)), scores.shape)
            best = keep_best(
                np.concatenate([best.indices, indices], axis=1), np.concatenate([best.scores, scores], axis=1), k
            )
        return best


def keep_best(indices: NDArray[np.int64], scores: NDArray[np.float64], k: int) -> Neighbors:
    """The k highest scores of each row (Q, n) in order; of equal ones those of the smaller index."""
    if k < scores.shape[1]:
        least = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]  # (Q, 1)
        scores = np.where(scores >= least, scores, -np.inf)  # ties at the end are decided by the sort
    order = np.lexsort((indices, -scores), axis=1)[:, :k]  # (Q, k)
    return Neighbors(np.take_along_axis(indices, order, axis=1), np.take_along_axis(scores, order, axis=1))


TRAINING_ROWS = 39  # images per list, below which faiss warns of too few
MIN_LISTS = 4  # with fewer an index saves nothing
PROBED = 8  # one list in so many is searched
SEED = 1234  # of the k-means of faiss
QUERIES = 1024  # at a time


class IndexSearch:
    """Looks only into the lists of an inverted file whose centers are near (faiss, IVF): faster, and may miss some.

    What it finds has exact scores. The index is built in memory; the same features give the same index.
    """

    def __init__(self, features: Features) -> None:
        faiss = load_faiss()
        self.features = features
        keys = normalize_rows(features).astype(np.float32)  # (N, D)
        lists = list_count(len(keys))
        self.probed = max(1, lists // PROBED)
        quantizer = faiss.IndexFlatIP(keys.shape[1])
        self._index = faiss.IndexIVFFlat(quantizer, keys.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        self._index.cp.seed = SEED
        self._index.nprobe = self.probed
        self._index.train(keys)
        self._index.add(keys)

    def find(self, queries: Features, k: int) -> Neighbors:
        """The k nearest images in the lists near each query (Q, D); the score of those that are missing is -inf."""
        k = min(k, len(self.features))
        empty = Neighbors(np.zeros((0, k), np.int64), np.zeros((0, k)))
        found = [self._find(queries[start : start + QUERIES], k) for start in range(0, len(queries), QUERIES)]
        return Neighbors(*map(np.concatenate, zip(empty, *found, strict=True)))

    def _find(self, queries: Features, k: int) -> Neighbors:
        rows = normalize_rows(queries)  # (Q, D)
        _, indices = self._index.search(rows.astype(np.float32), k)  # (Q, k), -1 where the lists have too few
        keys = normalize_rows(self.features[indices.ravel()]).reshape(*indices.shape, -1)  # (Q, k, D)
        scores = np.einsum("qd,qkd->qk", rows, keys).clip(-1, 1)
        return keep_best(indices.astype(np.int64), np.where(indices >= 0, scores, -np.inf), k)


def list_count(images: int) -> int:
    """The number of lists for so many images: four times the root, as far as each gets images to be trained on."""
    return max(1, min(round(4 * sqrt(images)), images // TRAINING_ROWS))


def has_use_for_index(images: int) -> bool:
    """Whether an index of so many images would have more than a few lists."""
    return list_count(images) >= MIN_LISTS


def measure_recall(found: Neighbors, exact: Neighbors) -> float:
    """The share of the exact neighbors that were found; a score as high as theirs counts."""
    least = exact.scores[:, -1:] - 1e-12  # (Q, 1)
    return float((found.scores >= least).sum() / max(1, exact.scores.size))
