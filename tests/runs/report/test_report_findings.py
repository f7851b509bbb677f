"""The headline and the remarks, story by story."""

import re
from pathlib import Path

import pytest

from tests.evaluation.test_accuracy import NAMES, ZOO, given_as
from tests.runs.report.stories import album, evaluation_of, measured, story_of
from vitral.evaluation.accuracy import compute_accuracy
from vitral.runs.report.charts import MetricLine
from vitral.runs.report.report import Headline, Report, findings, headline, worst_first


@pytest.fixture
def begun(tmp_path: Path) -> Report:
    return story_of(album(tmp_path, NAMES))


def losses(*values: float) -> list[MetricLine]:
    return [{"step": n, "epoch": float(n), "split": "val", "loss": value} for n, value in enumerate(values, start=1)]


def test_a_judged_run_is_told_by_its_accuracy(begun: Report) -> None:
    story = begun._replace(metrics=measured(), evaluation=evaluation_of(begun.samples, given_as(ZOO, 4)))
    found = headline(story)
    assert found.number == "44.4%"
    assert re.findall(r"[\d.]+%", found.detail) == ["95%", "18.9%", "73.3%", "55.6%"]


def test_a_run_under_way_is_told_by_its_latest_measurement(begun: Report) -> None:
    assert headline(begun) == Headline("\u2013", "nothing measured yet", "")
    train: MetricLine = {"step": 5, "epoch": 0.5, "split": "train", "loss": 2.0, "accuracy": 0.25, "rate": 0.1}
    assert headline(begun._replace(metrics=[train])) == Headline(
        "25.0%", "of the latest training images are named correctly", "epoch 0.5, step 5 of 40"
    )
    val: MetricLine = {"step": 10, "epoch": 1.0, "split": "val", "loss": 1.5, "accuracy": 0.5}
    later = {**train, "step": 15, "epoch": 1.5}
    assert headline(begun._replace(metrics=[train, val, later])) == Headline(
        "50.0%", "of the val images are named correctly", "epoch 1, step 10 of 40"
    )


def test_a_task_without_classes_is_told_by_its_loss(begun: Report) -> None:
    assert headline(begun._replace(metrics=losses(3, 2))) == Headline("2.00", "val loss", "epoch 2, step 2 of 40")


def test_notes_come_first_and_numbers_after(begun: Report) -> None:
    story = begun._replace(notes=("There is no validation split.",))
    assert findings(story) == ["There is no validation split."]
    story = story._replace(evaluation=evaluation_of(begun.samples, given_as(ZOO, 4)))
    assert findings(story) == [
        "There is no validation split.",
        "With 9 images, the 95% CI of the accuracy is ± 27.2 points: smaller differences are noise.",
        "The model is not clearly better than always predicting the most frequent class (55.6%): "
        "train longer, with more images or from pretrained weights.",
        "fox has the lowest recall: 0 of 1 image; 1 is predicted as dog.",
    ]


def test_a_model_without_a_weak_class_is_spared(begun: Report) -> None:
    perfect = given_as([(n, n) for n in range(4)], 4)
    assert len(findings(begun._replace(evaluation=evaluation_of(begun.samples, perfect)))) == 1


@pytest.mark.parametrize(("right", "clear"), [(20, False), (30, True)])
def test_a_model_that_may_be_guessing_is_told(begun: Report, right: int, clear: bool) -> None:
    answers = [(n % 2, n % 2 if n < right else 1 - n % 2) for n in range(40)]
    found = findings(begun._replace(evaluation=evaluation_of(begun.samples, given_as(answers, 4))))
    assert any("(50.0%)" in line for line in found) != clear


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((2.0, 1.0, 1.2), "lowest at epoch 2 (1.00) and has risen to 1.20"),
        ((2.0, 1.0, 1.04), ""),
        ((2.0, 1.5, 1.2), "lowest at the end"),
        ((2.0, 1.0), ""),
    ],
)
def test_the_course_of_the_loss_is_told(begun: Report, values: tuple[float, ...], told: str) -> None:
    found = findings(begun._replace(status="done", metrics=losses(*values)))
    assert (told in found[0]) if told else found == []


def test_a_run_under_way_is_not_called_too_short(begun: Report) -> None:
    assert findings(begun._replace(metrics=losses(3, 2, 1))) == []


def test_the_worst_class_is_first_and_one_without_images_last() -> None:
    found = worst_first(compute_accuracy(given_as(ZOO, 4), NAMES).classes)
    assert [each.name for each in found] == ["fox", "dog", "cat", "hen"]
