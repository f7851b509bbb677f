"""k nearest neighbors: how well the images around an image tell what it is of.

Q images that are asked about, N that are known, D width, k neighbors.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.subject import Labels, SubjectModel, stratified_folds

GRID = (1, 3, 5, 10, 20, 50, 100, 200)  # what k is chosen from
FOLDS = 5
CHUNK = 2**23  # distances in memory at a time: 64 MB

Rows = NDArray[np.float64]


class KnnTrial(Config):
    """How often so many neighbors were right about training images that were set aside."""

    k: int
    accuracy: float


class KnnResult(Config):
    """The judgment by nearest neighbors."""

    kind: Literal["knn"] = "knn"
    images: int
    training: int  # images that the neighbors are found among
    k: int
    top1: float
    interval: Interval  # of top1
    trials: tuple[KnnTrial, ...]  # that k was chosen by: the best, of equals the smallest


class KnnEvaluator(Config):
    """An image is of the class that most of the k training images nearest to it by angle are of (arXiv 1805.01978).

    k is chosen on folds of the training images. It learns nothing, so it shows the features as they are.
    """

    kind: Literal["knn"] = "knn"

    def check(self, subject: SubjectModel) -> None:
        subject.need_training(self.kind)

    def judge(self, subject: SubjectModel) -> KnnResult:
        known, asked = subject.vectors("train"), subject.vectors(subject.split)
        rows, labels = known.values.numpy(), known.labels.numpy()
        trials = cross_validate(rows, labels, subject.tools.seed)
        k = max(trials, key=lambda trial: trial.accuracy).k  # of equals, max takes the first
        right = int((predict_knn(rows, labels, asked.values.numpy(), k) == asked.labels.numpy()).sum())
        images = len(asked.labels)
        return KnnResult(
            images=images,
            training=len(labels),
            k=k,
            top1=right / images,
            interval=wilson_interval(right, images),
            trials=trials,
        )


def predict_knn(known: NDArray[np.floating], labels: Labels, asked: NDArray[np.floating], k: int) -> Labels:
    """The class (Q,) that most of the k nearest are of, of equally frequent ones that of the smallest label.

    Of neighbors at the very same distance those are taken that scikit-learn's KNeighborsClassifier would take.
    """
    classes = int(labels.max()) + 1
    return np.concatenate([majority_vote(labels[nearest], classes) for _, nearest in nearest_neighbors(known, asked, k)])  # (Q,)


def cross_validate(known: NDArray[np.floating], labels: Labels, seed: int) -> tuple[KnnTrial, ...]:
    """How right each k of the grid is about each fold when the others are known, if they have so many images."""
    folds = min(FOLDS, len(labels))
    fold = stratified_folds(labels, folds, seed)
    fewest = len(labels) - int(np.bincount(fold).max())
    grid = [k for k in GRID if k <= fewest]
    classes = int(labels.max()) + 1
    right = dict.fromkeys(grid, 0)
    for number in range(folds):
        inside, outside = fold == number, fold != number
        truth, others = labels[inside], labels[outside]
        for rows, nearest in nearest_neighbors(known[outside], known[inside], grid[-1]):
            for k in grid:
                right[k] += int((majority_vote(others[nearest[:, :k]], classes) == truth[rows]).sum())
    return tuple(KnnTrial(k=k, accuracy=count / len(labels)) for k, count in right.items())


def nearest_neighbors(
    known: NDArray[np.floating], asked: NDArray[np.floating], k: int
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Some asked rows at a time, and the places of the k known rows nearest to each (rows, k), nearest first."""
    keys = normalize_rows(known)  # (N, D)
    rows = max(1, CHUNK // len(keys))
    for start in range(0, len(asked), rows):
        these = slice(start, start + rows)
        distances = (1 - normalize_rows(asked[these]) @ keys.T).clip(0, 2)  # (rows, N)
        nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]  # as scikit-learn does, for its choice among equals
        order = np.take_along_axis(distances, nearest, axis=1).argsort(axis=1, kind="stable")
        yield these, np.take_along_axis(nearest, order, axis=1)


def normalize_rows(rows: NDArray[np.floating]) -> Rows:
    """The rows with length one, in float64; a row of zeros stays."""
    wide = rows.astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    return wide / np.where(lengths == 0, 1, lengths)[:, None]


def majority_vote(votes: Labels, classes: int) -> Labels:
    """The label that occurs most often in each row (Q, k), of equals the smallest."""
    rows = np.arange(len(votes))[:, None] * classes
    counts = np.bincount((rows + votes).ravel(), minlength=len(votes) * classes).reshape(len(votes), classes)
    return counts.argmax(axis=1)  # (Q,), the first of equals
