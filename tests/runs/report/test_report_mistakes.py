"""The worst mistakes: the right ones, in order, with the right pictures."""

from pathlib import Path

import pytest
from scipy.special import softmax

from tests.evaluation.test_accuracy import answers_of
from tests.runs.report.stories import album, answers_to, evaluation_of
from vitral.data.thumbnails import thumbnail_url
from vitral.evaluation.subject import Predictions
from vitral.runs.report.report import MAX_MISTAKES, worst_mistakes


def test_mistakes_come_surest_first_with_their_pictures(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    answers = answers_of([[0, 1], [0, 3], [0, 9], [2, 0]], [0, 0, 1, 1])
    found = worst_mistakes(evaluation_of(samples, answers), samples)
    assert [(each.label, each.prediction) for each in found] == [("cat", "dog"), ("dog", "cat"), ("cat", "dog")]
    chances = [softmax([0, 3])[::-1], softmax([2, 0]), softmax([0, 1])[::-1]]
    assert [(each.probability, each.label_probability) for each in found] == [pytest.approx(pair) for pair in chances]
    items = [samples.of("val")[place] for place in (1, 3, 0)]
    assert [(each.name, each.thumbnail) for each in found] == [
        (item.name, thumbnail_url(samples, item)) for item in items
    ]


def test_places_decide_which_picture_it_is(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    answers = answers_of([[0, 1], [1, 0]], [0, 0])._replace(indices=answers_of([[0]], [2]).labels.repeat(2))
    (mistake,) = worst_mistakes(evaluation_of(samples, answers), samples)
    assert mistake.name == samples.of("val")[2].name


def test_many_mistakes_are_cut_and_none_are_none(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog", "fox"), each=40)
    wrong = answers_to(samples)
    wrong = Predictions(-wrong.logits, wrong.labels, wrong.indices)
    assert len(worst_mistakes(evaluation_of(samples, wrong), samples)) == MAX_MISTAKES
    right = answers_of([[9, 0, 0]], [0])
    assert worst_mistakes(evaluation_of(samples, right), samples) == []


def test_a_picture_that_is_gone_is_told_without_it(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=1)
    answers = answers_of([[0, 1], [1, 0]], [0, 1])
    (tmp_path / samples.of("val")[0].name).unlink()
    sources = [each.thumbnail for each in worst_mistakes(evaluation_of(samples, answers), samples)]
    assert sources[0] == ""
    assert sources[1].startswith("data:image/")
