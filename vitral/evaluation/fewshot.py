"""Few-shot: the paper's regularized least squares on the features of a few images of each class, as big_vision runs it.

N images to learn from, T to judge by, D width, K classes, r = min(N, D + 1).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.core.config import Config
from vitral.evaluation.subject import Labels, SubjectModel, shorten

BIAS = 100.0  # the constant feature: so large that the bias is hardly regularized
EPSILON = 1e-5  # added to the deviation
L2 = 2.0**10  # the paper's
GRID = tuple(2.0**power for power in range(-10, 20))
ROWS = 4096  # images judged at a time

Rows = NDArray[np.float64]


class Score(Config):
    """The accuracy under one regularization, over the seeds."""

    l2: float
    mean: float
    spread: float  # the standard deviation of a seed; 0 where there is but one
    each: tuple[float, ...]  # seed by seed


class ShotsResult(Config):
    """What so many images of each class suffice for."""

    shots: int
    score: Score  # at the paper's l2 of 1024: this is the number to quote
    flattered: Score  # at the l2 of 2^-10 ... 2^19 that is best on the very images it is judged by


class FewShotResult(Config):
    """The judgment by few-shot."""

    kind: Literal["fewshot"] = "fewshot"
    images: int
    seeds: tuple[int, ...]
    rows: tuple[ShotsResult, ...]
    left_out: tuple[str, ...]  # what there are too few training images for, and of which classes


class FewShotEvaluator(Config):
    """A linear map from the features of a few training images of each class, drawn by seed, to targets of +-1."""

    kind: Literal["fewshot"] = "fewshot"
    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = Field(default=3, ge=1)

    def check(self, subject: SubjectModel) -> None:
        subject.need_training(self.kind)

    def judge(self, subject: SubjectModel) -> FewShotResult:
        classes = subject.samples.classes
        counts = subject.samples.counts("train")
        few = {
            shots: [name for name, count in zip(classes, counts, strict=True) if count < shots] for shots in self.shots
        }
        seeds = range(subject.tools.seed, subject.tools.seed + self.seeds)
        known, asked = subject.vectors("train"), subject.vectors(subject.split)
        test = Images(asked.values.numpy(), asked.labels.numpy())
        train = Images(known.values.numpy(), known.labels.numpy())
        rows = [evaluate_shots(train, test, len(classes), shots, seeds) for shots in self.shots if not few[shots]]
        left_out = (
            f"{shots} shots: too few training images of {shorten(names)}" for shots, names in few.items() if names
        )
        return FewShotResult(images=len(test.labels), seeds=tuple(seeds), rows=tuple(rows), left_out=tuple(left_out))


class Images(NamedTuple):
    """Features and what they are of."""

    values: NDArray[np.float32]  # (N, D)
    labels: Labels  # (N,)


class RidgeSolution(NamedTuple):
    """Least squares up to the regularization: the weights are left diag(1 / (values + l2)) right."""

    mean: Rows  # (D,)
    deviation: Rows  # (D,)
    values: Rows  # (r,), the eigenvalues
    left: Rows  # (D + 1, r)
    right: Rows  # (r, K)

    def weights(self, l2: float) -> Rows:
        """The map (D + 1, K) from whitened features and the constant to the targets."""
        return (self.left / (self.values + l2)) @ self.right

    def whitened(self, features: NDArray[np.floating]) -> Rows:
        """Features (T, D) as the map takes them, (T, D + 1)."""
        white = (features.astype(np.float64) - self.mean) / self.deviation
        return np.pad(white, ((0, 0), (0, 1)), constant_values=BIAS)


def evaluate_shots(train: Images, test: Images, classes: int, shots: int, seeds: Sequence[int]) -> ShotsResult:
    """The scores of so many shots."""
    right = np.array([_right(train, test, classes, shots, seed) for seed in seeds])  # (seeds, l2)
    shares = right / len(test.labels)
    best = int(shares.mean(axis=0).argmax())  # of equals the weakest regularization
    own = GRID.index(L2)
    return ShotsResult(shots=shots, score=_score(L2, shares[:, own]), flattered=_score(GRID[best], shares[:, best]))


def draw_shots(labels: Labels, classes: int, shots: int, seed: int) -> NDArray[np.int64]:
    """The places of so many images of each class: big_vision's very draw, for images in the same order."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    return np.concatenate([order[:shots] for order in orders])  # (N,)


def solve_ridge(features: NDArray[np.floating], labels: Labels, classes: int) -> RidgeSolution:
    """The closed form for every l2 at once, through the smaller of the two Gram matrices."""
    wide = features.astype(np.float64)  # (N, D)
    mean, deviation = wide.mean(axis=0), wide.std(axis=0) + EPSILON
    white = np.pad((wide - mean) / deviation, ((0, 0), (0, 1)), constant_values=BIAS)  # (N, D + 1)
    targets = 2 * np.eye(classes)[labels] - 1  # (N, K)
    if white.shape[0] >= white.shape[1]:
        values, vectors = np.linalg.eigh(white.T @ white)  # (D + 1,), (D + 1, D + 1)
        return RidgeSolution(mean, deviation, values, vectors, vectors.T @ (white.T @ targets))
    values, vectors = np.linalg.eigh(white @ white.T)  # (N,), (N, N)
    return RidgeSolution(mean, deviation, values, white.T @ vectors, vectors.T @ targets)


def _right(train: Images, test: Images, classes: int, shots: int, seed: int) -> list[int]:
    """How many images of the test are told right under each l2 of the grid."""
    places = draw_shots(train.labels, classes, shots, seed)
    found = solve_ridge(train.values[places], train.labels[places], classes)
    right = [0] * len(GRID)
    maps = [found.weights(l2) for l2 in GRID]
    for start in range(0, len(test.labels), ROWS):
        white = found.whitened(test.values[start : start + ROWS])
        truth = test.labels[start : start + ROWS]
        for number, weights in enumerate(maps):
            right[number] += int(((white @ weights).argmax(axis=1) == truth).sum())
    return right


def _score(l2: float, shares: Rows) -> Score:
    spread = float(shares.std(ddof=1)) if len(shares) > 1 else 0.0
    return Score(l2=l2, mean=float(shares.mean()), spread=spread, each=tuple(shares.tolist()))
