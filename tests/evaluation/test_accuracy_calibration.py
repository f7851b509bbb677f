"""Calibration against literal numbers and brute force."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from tests.evaluation.test_accuracy import answers_of, random_answers
from vitral.evaluation.accuracy import BINS, Calibration, compute_calibration
from vitral.evaluation.subject import Predictions


def said(probabilities: list[float], labels: list[int]) -> Predictions:
    """Answers of two classes, the first with the probability given."""
    return answers_of([[np.log(each), np.log1p(-each)] for each in probabilities], labels)


def test_four_answers_counted_by_hand() -> None:
    # Two say 0.9 and one is right, two say 0.65 and both are right.
    found = compute_calibration(said([0.9, 0.9, 0.65, 0.65], [0, 1, 0, 0]))
    assert found.ece == pytest.approx((2 * 0.4 + 2 * 0.35) / 4)
    assert found.brier == pytest.approx((0.02 + 2 * 0.81 + 2 * 2 * 0.35**2) / 4)
    assert found.mean_confidence == pytest.approx(0.775)
    full = {number: each for number, each in enumerate(found.bins) if each.images}
    assert {number: (each.images, each.accuracy) for number, each in full.items()} == {9: (2, 1.0), 13: (2, 0.5)}
    assert full[9].confidence == pytest.approx(0.65)
    assert full[13].confidence == pytest.approx(0.9)


def test_the_bins_are_fifteen_of_equal_width() -> None:
    bins = compute_calibration(said([0.9], [0])).bins
    assert len(bins) == BINS == 15
    assert [each.low for each in bins[1:]] == [each.high for each in bins[:-1]]
    assert (bins[0].low, bins[-1].high) == (0.0, 1.0)
    assert bins[0].confidence is None
    assert bins[0].accuracy is None


def test_one_that_knows_is_perfect_and_one_that_errs_surely_is_worst() -> None:
    sure = [[100.0, -100.0], [-100.0, 100.0]]
    right, wrong = compute_calibration(answers_of(sure, [0, 1])), compute_calibration(answers_of(sure, [1, 0]))
    assert (right.ece, right.brier) == pytest.approx((0, 0))
    assert (wrong.ece, wrong.brier) == pytest.approx((1, 2))


@pytest.mark.parametrize(("images", "classes"), [(1, 2), (60, 3), (500, 20), (5000, 3)])
def test_everything_agrees_with_brute_force(images: int, classes: int) -> None:
    answers = random_answers(images, classes)
    found = compute_calibration(answers)
    chances = softmax(answers.logits.double().numpy(), axis=1)
    labels = answers.labels.numpy()
    truth = np.eye(classes)[labels]
    assert found.brier == pytest.approx(((chances - truth) ** 2).sum(axis=1).mean())
    total = 0.0
    for number, each in enumerate(found.bins):
        here = [row for row in range(images) if number / 15 < chances[row].max() <= (number + 1) / 15]
        assert each.images == len(here)
        if here:
            confidence = np.mean([chances[row].max() for row in here])
            accuracy = np.mean([chances[row].argmax() == labels[row] for row in here])
            assert (each.confidence, each.accuracy) == pytest.approx((confidence, accuracy))
            total += len(here) / images * abs(confidence - accuracy)
    assert found.ece == pytest.approx(total)


def test_a_head_of_zeros_is_as_sure_as_it_is_right() -> None:
    found = compute_calibration(answers_of([[0.0] * 10] * 10, list(range(10))))
    assert found.ece == pytest.approx(0)


def test_the_calibration_comes_back_from_its_json() -> None:
    found = compute_calibration(random_answers(30, 7))
    assert Calibration.from_json(found.to_json()) == found
    assert torch.tensor(found.ece).isfinite()
