"""k-NN classification of features.

Q queries, N training images, D width, k neighbors.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.subject import Labels, SubjectModel, stratified_folds

GRID = (1, 3, 5, 10, 20, 50, 100, 200)  # candidates for k
FOLDS = 5
CHUNK = 2**23  # distances in memory at a time: 64 MB

Features = NDArray[np.floating]


class KnnTrial(Config):
    """The cross-validated accuracy of one k."""

    k: int
    accuracy: float


class KnnResult(Config):
    """The k-NN accuracy."""

    kind: Literal["knn"] = "knn"
    images: int
    train_images: int  # among which the neighbors are searched
    k: int
    top1: float
    ci95: Interval  # of top1
    trials: tuple[KnnTrial, ...]  # from which k was chosen: the best, of equals the smallest


class KnnEvaluator(Config):
    """Majority vote of the k training images nearest by cosine similarity (arXiv 1805.01978).

    k is chosen by cross-validation. Nothing is trained, so this measures the features as they are.
    """

    kind: Literal["knn"] = "knn"

    def check(self, subject: SubjectModel) -> None:
        subject.check_training_images(self.kind)

    def evaluate(self, subject: SubjectModel) -> KnnResult:
        train, test = subject.features("train"), subject.features(subject.split)
        rows, labels = train.values.numpy(), train.labels.numpy()
        trials = cross_validate(rows, labels, subject.context.seed)
        k = max(trials, key=lambda trial: trial.accuracy).k  # of equals, max takes the first
        correct = int((predict_knn(rows, labels, test.values.numpy(), k) == test.labels.numpy()).sum())
        images = len(test.labels)
        return KnnResult(
            images=images,
            train_images=len(labels),
            k=k,
            top1=correct / images,
            ci95=wilson_interval(correct, images),
            trials=trials,
        )


def predict_knn(train: Features, labels: Labels, queries: Features, k: int) -> Labels:
    """The most frequent class of the k nearest neighbors (Q,); of equally frequent ones the smallest label.

    Among neighbors at equal distance, the choice is that of scikit-learn's KNeighborsClassifier.
    """
    classes, chunks = int(labels.max()) + 1, nearest_neighbors(train, queries, k)
    return np.concatenate([majority_vote(labels[nearest], classes) for _, nearest in chunks])  # (Q,)


def cross_validate(train: Features, labels: Labels, seed: int) -> tuple[KnnTrial, ...]:
    """The cross-validated accuracy of each k of the grid that the training folds have enough images for."""
    folds = min(FOLDS, len(labels))
    fold = stratified_folds(labels, folds, seed)
    fewest = len(labels) - int(np.bincount(fold).max())
    grid = [k for k in GRID if k <= fewest]
    classes = int(labels.max()) + 1
    correct = dict.fromkeys(grid, 0)
    for number in range(folds):
        inside, outside = fold == number, fold != number
        truth, others = labels[inside], labels[outside]
        for rows, nearest in nearest_neighbors(train[outside], train[inside], grid[-1]):
            for k in grid:
                correct[k] += int((majority_vote(others[nearest[:, :k]], classes) == truth[rows]).sum())
    return tuple(KnnTrial(k=k, accuracy=count / len(labels)) for k, count in correct.items())


def nearest_neighbors(train: Features, queries: Features, k: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """A chunk of queries at a time, and the indices of the k nearest training rows (rows, k), nearest first."""
    keys = normalize_rows(train)  # (N, D)
    rows = max(1, CHUNK // len(keys))
    for start in range(0, len(queries), rows):
        chunk = slice(start, start + rows)
        distances = (1 - normalize_rows(queries[chunk]) @ keys.T).clip(0, 2)  # (rows, N)
        nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]  # as scikit-learn does, for its choice among equals
        order = np.take_along_axis(distances, nearest, axis=1).argsort(axis=1, kind="stable")
        yield chunk, np.take_along_axis(nearest, order, axis=1)


def normalize_rows(rows: Features) -> NDArray[np.float64]:
    """The rows scaled to unit length, in float64; rows of zeros stay."""
    wide = rows.astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    return wide / np.where(lengths == 0, 1, lengths)[:, None]


def majority_vote(votes: Labels, classes: int) -> Labels:
    """The label that occurs most often in each row (Q, k), of equals the smallest."""
    rows = np.arange(len(votes))[:, None] * classes
    counts = np.bincount((rows + votes).ravel(), minlength=len(votes) * classes).reshape(len(votes), classes)
    return counts.argmax(axis=1)  # (Q,), the first of equals
