"""What a program is told: small, and the same numbers as on the page."""

import json

import numpy as np
import pytest

from tests.explanation.stand_in import stand_in, stand_in_resnet
from vitral.explanation.explanation import Faithfulness
from vitral.explanation.faithfulness import verdicts
from vitral.explanation.summary import Summary, summary_of


def test_answers_are_the_most_probable_first() -> None:
    explanation = stand_in()
    found = summary_of(explanation)
    assert len(found.answers) == 5
    expected = sorted(zip(explanation.probabilities.tolist(), explanation.classes, strict=True), reverse=True)[:5]
    assert [(each.probability, each.name) for each in found.answers] == expected
    assert (found.image, found.explained) == ("bee.jpg", explanation.target)


def test_areas_are_those_of_the_curves() -> None:
    explanation = stand_in()
    found = summary_of(explanation)
    tried = explanation.faithfulness
    assert [each.map for each in found.tests] == [trial.kind for trial in tried.trials]
    for each, trial, verdict in zip(found.tests, tried.trials, verdicts(tried), strict=True):
        assert each.deletion_area == pytest.approx(trial.curve.deletion_area)
        assert each.insertion_area == pytest.approx(trial.curve.insertion_area)
        assert each.random_deletion_area == pytest.approx(np.mean([curve.deletion_area for curve in tried.chance]))
        assert each.random_insertion_area == pytest.approx(np.mean([curve.insertion_area for curve in tried.chance]))
        assert each.standing == verdict.standing


def test_without_classes_or_trials_there_is_little_to_tell() -> None:
    found = summary_of(stand_in(classes=())._replace(faithfulness=Faithfulness()))
    assert (found.answers, found.tests) == ((), ())
    assert summary_of(stand_in_resnet()).maps


def test_the_json_is_small_and_reads_back() -> None:
    images = (summary_of(stand_in()),)
    text = Summary(model="runs/x", page="x.html", figures=(), images=images, refused=()).to_json()
    assert len(text) < 5_000
    assert json.loads(text)["images"][0]["answers"][0]["name"]
    assert Summary.from_json(text).images == images
