"""What a program is told: small, and the same numbers as on the page."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.explanation.stand_in import stand_in, stand_in_resnet
from vitral.explanation.explanation import Faithfulness, Summary, summarize


def test_answers_are_the_most_probable_first() -> None:
    explanation = stand_in()
    found = summarize(explanation)
    assert len(found.predictions) == 5
    expected = sorted(zip(explanation.probabilities.tolist(), explanation.classes, strict=True), reverse=True)[:5]
    assert [(each.probability, each.name) for each in found.predictions] == expected
    assert (found.image, found.target) == ("bee.jpg", explanation.target)


def test_areas_are_those_of_the_curves() -> None:
    explanation = stand_in()
    found = summarize(explanation)
    curves, random = explanation.faithfulness
    assert [each.map for each in found.faithfulness] == list(curves)
    for each, score in zip(found.faithfulness, explanation.faithfulness.scores().values(), strict=True):
        assert each.deletion_auc == pytest.approx(curves[each.map].deletion_auc)
        assert each.insertion_auc == pytest.approx(curves[each.map].insertion_auc)
        assert each.random_deletion_auc == pytest.approx(np.mean([curve.deletion_auc for curve in random]))
        assert each.random_insertion_auc == pytest.approx(np.mean([curve.insertion_auc for curve in random]))
        assert each.verdict == score.verdict


def test_without_classes_or_trials_there_is_little_to_tell() -> None:
    found = summarize(replace(stand_in(classes=()), faithfulness=Faithfulness()))
    assert (found.predictions, found.faithfulness) == ((), ())
    assert summarize(stand_in_resnet()).maps


def test_the_json_is_small_and_reads_back() -> None:
    images = (summarize(stand_in()),)
    text = Summary(model="runs/x", page="x.html", figures=(), images=images, errors=()).to_json()
    assert len(text) < 5_000
    assert json.loads(text)["images"][0]["predictions"][0]["name"]
    assert Summary.from_json(text).images == images
