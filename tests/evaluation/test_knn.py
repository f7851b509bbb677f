"""Nearest neighbors against scikit-learn's."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier

from tests.errors import raises
from tests.evaluation.subjects import stripes, subject, without
from vitral.evaluation import knn
from vitral.evaluation.knn import GRID, KnnEvaluator, cross_validate, majority_vote, predict_knn
from vitral.evaluation.subject import stratified_folds


def clusters(images: int, classes: int, seed: int, width: int = 12) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of one class that are near each other, and not all nearest."""
    labels = np.random.default_rng(seed).integers(0, classes, images)
    middles = np.random.default_rng(99).normal(size=(classes, width))
    rows = middles[labels] + np.random.default_rng([seed, 1]).normal(size=(images, width))
    return rows.astype(np.float32), labels


def crossings(images: int, seed: int) -> NDArray[np.float32]:
    """Rows with 1, 4 or no ones, whose lengths are whole: any two are at one of a few distances, exactly."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((images, 8), dtype=np.float32)
    for row in rows:
        row[rng.permutation(8)[: rng.choice([0, 1, 4], p=[0.1, 0.45, 0.45])]] = 1
    return rows


def theirs(known: NDArray[np.float32], labels: NDArray[np.int64], asked: NDArray[np.float32], k: int) -> object:
    found = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(known.astype(np.float64), labels)
    return found.predict(asked.astype(np.float64)).tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 5, 20, 150])
def test_the_classes_are_those_of_scikit_learn(k: int) -> None:
    known, labels = clusters(300, 7, seed=0)
    asked, _ = clusters(200, 7, seed=1)
    assert predict_knn(known, labels, asked, k).tolist() == theirs(known, labels, asked, k)


@pytest.mark.parametrize("k", [1, 2, 4, 10, 60])
@pytest.mark.parametrize("chunk", [1, 500, knn.CHUNK])
def test_so_are_they_where_distances_and_votes_are_equal(k: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "CHUNK", chunk)
    known, asked = crossings(120, seed=0), crossings(90, seed=1)
    labels = np.random.default_rng(2).integers(0, 5, 120)
    assert predict_knn(known, labels, asked, k).tolist() == theirs(known, labels, asked, k)


def test_the_trials_are_those_of_scikit_learn_on_the_same_folds() -> None:
    known, labels = clusters(160, 4, seed=3)
    fold = stratified_folds(labels, 5, seed=7)
    found = cross_validate(known, labels, seed=7)
    assert [trial.k for trial in found] == [1, 3, 5, 10, 20, 50, 100]  # 128 are known at a time
    for trial in found:
        right = 0
        for number in range(5):
            inside = fold == number
            answers = theirs(known[~inside], labels[~inside], known[inside], trial.k)
            right += int((np.array(answers) == labels[inside]).sum())
        assert trial.accuracy == right / 160
    assert len({trial.accuracy for trial in found}) > 1


@pytest.mark.parametrize("images", [2, 3, 6])
def test_of_few_images_few_neighbors_are_tried(images: int) -> None:
    known, _ = clusters(images, 2, seed=0)
    assert [trial.k for trial in cross_validate(known, np.arange(images) % 2, seed=0)] == [1, 3][: 1 + (images == 6)]


def test_of_equal_votes_the_smallest_label_wins() -> None:
    assert majority_vote(np.array([[2, 1, 1, 2], [3, 0, 3, 0], [3, 3, 1, 0]]), 4).tolist() == [1, 0, 3]


def test_the_judge_chooses_the_best_k_and_of_equals_the_smallest() -> None:
    whole = subject()
    found = KnnEvaluator().evaluate(whole)
    known, asked = whole.features("train"), whole.features("test")
    best = max(trial.accuracy for trial in found.trials)
    assert found.k == min(trial.k for trial in found.trials if trial.accuracy == best)
    assert found.k in GRID
    answers = theirs(known.values.numpy(), known.labels.numpy(), asked.values.numpy(), found.k)
    assert found.top1 == np.mean(np.array(answers) == asked.labels.numpy())
    assert (found.images, found.train_images) == (18, 36)
    assert found.ci95.low < found.top1 < found.ci95.high or found.top1 == 1


def test_without_training_images_it_is_refused_by_the_name_of_the_split() -> None:
    with raises("data.too_few", "knn", "'train'", 0, "18 test"):
        KnnEvaluator().check(subject(samples=without(stripes(), "train")))
