"""Accuracy against counting by hand, brute force and SciPy."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import binomtest

from tests.errors import raises
from vitral.evaluation.accuracy import Accuracy, compute_accuracy, wilson_interval
from vitral.evaluation.subject import Predictions


def answers_of(logits: object, labels: list[int]) -> Predictions:
    return Predictions(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels), torch.arange(len(labels)))


def given_as(pairs: list[tuple[int, int]], classes: int) -> Predictions:
    """Answers that give each image of a label (first) a class (second)."""
    return answers_of(np.eye(classes)[[given for _, given in pairs]].tolist(), [label for label, _ in pairs])


def random_answers(images: int, classes: int, seed: int = 0) -> Predictions:
    """Logits of few values, so that many are equal."""
    rng = np.random.default_rng(seed)
    return answers_of(rng.integers(0, 9, (images, classes)).tolist(), rng.integers(0, classes, images).tolist())


# 4 cats (3 right, 1 dog), 3 dogs (1 right, 2 cats), 1 fox (dog), no hen but one cat taken for it
ZOO = [(0, 0), (0, 0), (0, 0), (0, 1), (1, 1), (1, 0), (1, 0), (2, 1), (0, 3)]
NAMES = ("cat", "dog", "fox", "hen")


def test_a_small_zoo_counted_by_hand() -> None:
    found = compute_accuracy(given_as(ZOO, 4), NAMES)
    assert (found.images, found.top1, found.majority_baseline, found.top5) == (9, 4 / 9, 5 / 9, None)
    assert found.confusion_matrix.tolist() == [[3, 1, 0, 1], [2, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    table = [
        (
            each.images,
            each.correct,
            each.predicted,
            each.recall,
            each.precision,
            each.f1,
            each.most_confused_with,
            each.most_confused_count,
        )
        for each in found.classes
    ]
    assert [each.name for each in found.classes] == list(NAMES)
    assert table == [
        (5, 3, 5, 3 / 5, 3 / 5, 3 / 5, "dog", 1),
        (3, 1, 3, 1 / 3, 1 / 3, 1 / 3, "cat", 2),
        (1, 0, 0, 0.0, None, 0.0, "dog", 1),
        (0, 0, 1, None, 0.0, 0.0, "", 0),
    ]


def test_a_class_without_images_and_answers_has_no_shares() -> None:
    last = compute_accuracy(given_as([(0, 0), (1, 1)], 3), ("a", "b", "c")).classes[2]
    assert (last.recall, last.precision, last.f1) == (None, None, None)


@pytest.mark.parametrize(("images", "classes"), [(1, 2), (50, 2), (200, 6), (300, 40)])
def test_everything_agrees_with_brute_force(images: int, classes: int) -> None:
    answers = random_answers(images, classes)
    found = compute_accuracy(answers, [f"class {number}" for number in range(classes)])
    rows = list(zip(answers.logits.tolist(), answers.labels.tolist(), strict=True))
    orders = [sorted(range(classes), key=lambda number: (-row[number], number)) for row, _ in rows]
    places = [order.index(label) for order, (_, label) in zip(orders, rows, strict=True)]
    assert found.top1 == pytest.approx(np.mean([place < 1 for place in places]))
    assert found.top5 == (None if classes <= 5 else pytest.approx(np.mean([place < 5 for place in places])))
    assert found.loss == pytest.approx(-np.mean([log_softmax(row)[label] for row, label in rows]))
    met = Counter((label, order[0]) for order, (_, label) in zip(orders, rows, strict=True))
    assert {(pair.label, pair.prediction): pair.images for pair in found.confusion_counts} == met
    assert found.confusion_matrix.sum() == images
    assert [each.correct for each in found.classes] == np.diag(found.confusion_matrix).tolist()
    assert [each.predicted for each in found.classes] == found.confusion_matrix.sum(axis=0).tolist()


def test_a_head_of_zeros_names_the_first_class() -> None:
    found = compute_accuracy(answers_of([[0.0] * 10] * 10, list(range(10))), list("abcdefghij"))
    assert (found.top1, found.top5) == (0.1, 0.5)
    assert found.loss == pytest.approx(np.log(10))


@pytest.mark.parametrize(("right", "images"), [(0, 1), (1, 1), (0, 30), (30, 30), (7, 9), (861, 1000), (9999, 10000)])
def test_the_interval_is_that_of_wilson(right: int, images: int) -> None:
    truth = binomtest(right, images).proportion_ci(0.95, method="wilson")
    found = wilson_interval(right, images)
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high), abs=1e-12)


def test_the_interval_belongs_to_the_share_of_right_answers() -> None:
    found = compute_accuracy(given_as(ZOO, 4), NAMES)
    assert found.ci95 == wilson_interval(4, 9)


def test_the_judgment_comes_back_from_its_json() -> None:
    found = compute_accuracy(random_answers(30, 7), [f"class {number}" for number in range(7)])
    assert Accuracy.from_json(found.to_json()) == found


def test_what_a_million_pairs_could_be_is_kept_small() -> None:
    found = compute_accuracy(random_answers(20, 1000), [str(number) for number in range(1000)])
    assert len(found.confusion_counts) <= 20


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), float("-inf")])
def test_answers_that_are_no_numbers_are_refused(strange: float) -> None:
    with raises("weights.not_finite", "logits", "1 of 2"):
        compute_accuracy(answers_of([[0.0, 1.0], [strange, 0.0]], [0, 1]), ("a", "b"))
