"""Features on a plane, and how far they are spread.  N images, D width."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.knn import Features, normalize_rows


class Projection(NamedTuple):
    """The two directions of the largest variance (principal components) of features on the unit sphere."""

    points: NDArray[np.float64]  # (N, 2)
    explained: tuple[float, float]  # shares of the variance


def project(features: Features) -> Projection:
    """The projection of features (N, D). Of each component the entry of the largest magnitude is positive."""
    rows = normalize_rows(features)
    rows = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.T @ rows)  # ascending; (D,), (D, D)
    axes = vectors[:, ::-1][:, :2]  # (D, 2 or 1)
    axes = axes * np.where(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)
    points = np.zeros((len(rows), 2))
    points[:, : axes.shape[1]] = rows @ axes
    shares = [*(values[::-1][:2].clip(0) / max(values.clip(0).sum(), np.finfo(np.float64).tiny)), 0.0]
    return Projection(points, (float(shares[0]), float(shares[1])))


class Spread(NamedTuple):
    """How far features are from all being the same."""

    std: float  # 1 if they are spread in all directions alike, 0 if all are the same
    rank: float  # how many directions they take: (sum of eigenvalues)^2 / sum of squares of the covariance
    width: int


def measure_spread(features: Features) -> Spread:
    """The spread of features (N, D) on the unit sphere, and the effective rank of their covariance."""
    rows = normalize_rows(features)
    width = rows.shape[1]
    centered = rows - rows.mean(axis=0)
    covariance = centered.T @ centered / max(1, len(rows))  # (D, D)
    squares = float(np.square(covariance).sum())
    rank = float(np.trace(covariance)) ** 2 / squares if squares > 0 else 0.0
    return Spread(float(centered.std(axis=0).mean() * np.sqrt(width)), rank, width)
