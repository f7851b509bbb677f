"""Few-shot evaluation: ridge regression on the features of a few images of each class, as in the paper and big_vision.

N training images, T test images, D width, K classes, r = min(N, D + 1).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.core.config import Config
from vitral.data.samples import format_names
from vitral.evaluation.subject import MAX_NAMES, Labels, SubjectModel

BIAS = 100.0  # the constant feature; large, so that the bias is hardly regularized
EPSILON = 1e-5  # added to the standard deviation
L2 = 2.0**10  # the paper's
GRID = tuple(2.0**power for power in range(-10, 20))
ROWS = 4096  # test images at a time

Rows = NDArray[np.float64]


class Score(Config):
    """The accuracy at one regularization, over the seeds."""

    l2: float
    mean: float
    std: float  # over the seeds; 0 for a single seed
    per_seed: tuple[float, ...]


class ShotsResult(Config):
    """The accuracy with this many training images of each class."""

    shots: int
    score: Score  # at the paper's l2 of 1024: the number to report
    oracle: Score  # at the l2 of 2^-10 ... 2^19 that is best on the test images themselves: optimistic


class FewShotResult(Config):
    """The few-shot accuracy by number of shots."""

    kind: Literal["fewshot"] = "fewshot"
    images: int
    seeds: tuple[int, ...]
    rows: tuple[ShotsResult, ...]
    skipped: tuple[str, ...]  # shots with too few training images, and the classes that lack them


class FewShotEvaluator(Config):
    """Ridge regression from the features of a few training images of each class, drawn by seed, to targets of +-1."""

    kind: Literal["fewshot"] = "fewshot"
    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = Field(default=3, ge=1)

    def check(self, subject: SubjectModel) -> None:
        subject.check_training_images(self.kind)

    def evaluate(self, subject: SubjectModel) -> FewShotResult:
        classes = subject.samples.classes
        counts = subject.samples.counts("train")
        named = list(zip(classes, counts, strict=True))
        few = {shots: [name for name, count in named if count < shots] for shots in self.shots}
        seeds = range(subject.context.seed, subject.context.seed + self.seeds)
        train_set, test_set = subject.features("train"), subject.features(subject.split)
        test = Images(test_set.values.numpy(), test_set.labels.numpy())
        train = Images(train_set.values.numpy(), train_set.labels.numpy())
        rows = [evaluate_shots(train, test, len(classes), shots, seeds) for shots in self.shots if not few[shots]]
        lacking = {shots: format_names(names, MAX_NAMES) for shots, names in few.items() if names}
        skipped = [f"{shots} shots: too few training images of {names}" for shots, names in lacking.items()]
        return FewShotResult(images=len(test.labels), seeds=tuple(seeds), rows=tuple(rows), skipped=tuple(skipped))


class Images(NamedTuple):
    """Features and labels."""

    values: NDArray[np.float32]  # (N, D)
    labels: Labels  # (N,)


class RidgeSolution(NamedTuple):
    """Ridge regression for every l2: the weights are left diag(1 / (eigenvalues + l2)) right."""

    mean: Rows  # (D,)
    std: Rows  # (D,)
    eigenvalues: Rows  # (r,)
    left: Rows  # (D + 1, r)
    right: Rows  # (r, K)

    def weights(self, l2: float) -> Rows:
        """The weights (D + 1, K) for standardized features and the constant."""
        return (self.left / (self.eigenvalues + l2)) @ self.right

    def standardize(self, features: NDArray[np.floating]) -> Rows:
        """Features (T, D), standardized, with the constant, (T, D + 1)."""
        white = (features.astype(np.float64) - self.mean) / self.std
        return np.pad(white, ((0, 0), (0, 1)), constant_values=BIAS)


def evaluate_shots(train: Images, test: Images, classes: int, shots: int, seeds: Sequence[int]) -> ShotsResult:
    """The scores of this many shots."""
    correct = np.array([_count_correct(train, test, classes, shots, seed) for seed in seeds])  # (seeds, l2)
    accuracies = correct / len(test.labels)
    best = int(accuracies.mean(axis=0).argmax())  # of equals the weakest regularization
    score = _score(L2, accuracies[:, GRID.index(L2)])
    return ShotsResult(shots=shots, score=score, oracle=_score(GRID[best], accuracies[:, best]))


def draw_shots(labels: Labels, classes: int, shots: int, seed: int) -> NDArray[np.int64]:
    """The indices of this many images of each class: the draw of big_vision, given the same order of images."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    return np.concatenate([order[:shots] for order in orders])  # (N,)


def solve_ridge(features: NDArray[np.floating], labels: Labels, classes: int) -> RidgeSolution:
    """The closed form for every l2 at once, by the smaller of the two Gram matrices."""
    wide = features.astype(np.float64)  # (N, D)
    mean, std = wide.mean(axis=0), wide.std(axis=0) + EPSILON
    white = np.pad((wide - mean) / std, ((0, 0), (0, 1)), constant_values=BIAS)  # (N, D + 1)
    targets = 2 * np.eye(classes)[labels] - 1  # (N, K)
    if white.shape[0] >= white.shape[1]:
        values, vectors = np.linalg.eigh(white.T @ white)  # (D + 1,), (D + 1, D + 1)
        return RidgeSolution(mean, std, values, vectors, vectors.T @ (white.T @ targets))
    values, vectors = np.linalg.eigh(white @ white.T)  # (N,), (N, N)
    return RidgeSolution(mean, std, values, white.T @ vectors, vectors.T @ targets)


def _count_correct(train: Images, test: Images, classes: int, shots: int, seed: int) -> list[int]:
    """How many test images are classified correctly at each l2 of the grid."""
    indices = draw_shots(train.labels, classes, shots, seed)
    solution = solve_ridge(train.values[indices], train.labels[indices], classes)
    correct = [0] * len(GRID)
    maps = [solution.weights(l2) for l2 in GRID]
    for start in range(0, len(test.labels), ROWS):
        white = solution.standardize(test.values[start : start + ROWS])
        truth = test.labels[start : start + ROWS]
        for number, weights in enumerate(maps):
            correct[number] += int(((white @ weights).argmax(axis=1) == truth).sum())
    return correct


def _score(l2: float, accuracies: Rows) -> Score:
    std = float(accuracies.std(ddof=1)) if len(accuracies) > 1 else 0.0
    return Score(l2=l2, mean=float(accuracies.mean()), std=std, per_seed=tuple(accuracies.tolist()))
