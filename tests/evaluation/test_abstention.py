"""Abstention by hand and by brute force."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tests.evaluation.subjects import stripes, subject
from vitral.evaluation.abstention import (
    AbstentionEvaluator,
    Answers,
    area_under_risk,
    choose_threshold,
    least_area,
    point_at_coverage,
)
from vitral.evaluation.accuracy import wilson_interval


def answers(confidence: list[float], correct: list[bool]) -> Answers:
    return Answers(np.array(confidence), np.array(correct))


def test_the_area_is_the_mean_risk_over_coverages_and_over_orders_of_equals() -> None:
    confidence, correct = [0.9, 0.7, 0.7, 0.7, 0.2], [True, False, True, True, False]
    areas = []
    for order in permutations([1, 2, 3]):
        ranked = [correct[place] for place in (0, *order, 4)]
        areas.append(np.mean([1 - np.mean(ranked[:count]) for count in range(1, 6)]))
    assert area_under_risk(answers(confidence, correct)) == pytest.approx(np.mean(areas))
    ranked = sorted(correct, reverse=True)
    assert least_area(3, 5) == pytest.approx(np.mean([1 - np.mean(ranked[:count]) for count in range(1, 6)]))


def test_equal_confidences_are_answered_together() -> None:
    found = point_at_coverage(answers([0.9, 0.7, 0.7, 0.7, 0.2], [True, False, True, True, False]), 0.4)
    assert (found.threshold, found.coverage, found.accuracy) == (0.7, 0.8, 0.75)


def test_a_threshold_is_the_lowest_that_is_sure_of_the_accuracy() -> None:
    rng = np.random.default_rng(0)
    confidence = np.sort(rng.random(400))[::-1]
    given = Answers(confidence, rng.random(400) < confidence**0.2)
    found = choose_threshold(given, 0.9)
    hits = np.cumsum(given.correct).tolist()
    sure = [t for count, t in enumerate(confidence, 1) if wilson_interval(hits[count - 1], count).low >= 0.9]
    assert found == min(sure)
    assert choose_threshold(given, 0.999) is None


def test_thresholds_come_from_val_where_there_is_one() -> None:
    plain = stripes()
    own = AbstentionEvaluator().evaluate(subject(samples=plain))
    assert (own.chosen_on, own.chosen_apart, own.chosen_images) == ("test", False, 18)
    items = tuple(item._replace(split="val") if item.split == "train" else item for item in plain.items)
    found = AbstentionEvaluator().evaluate(subject(samples=replace(plain, items=items)))
    assert (found.chosen_on, found.chosen_apart, found.chosen_images) == ("val", True, 36)
    assert found.points == own.points
    assert found.points[0].accuracy == found.accuracy
