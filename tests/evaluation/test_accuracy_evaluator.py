"""The judge of answers."""

from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes, subject
from vitral.core.config import Size
from vitral.evaluation.accuracy import AccuracyEvaluator, compute_accuracy, compute_calibration


def test_it_finds_the_accuracy_and_calibration_of_the_answers() -> None:
    whole = subject()
    found = AccuracyEvaluator().evaluate(whole)
    answers = whole.predictions(Size(16, 16))
    assert found.accuracy == compute_accuracy(answers, ("ant", "bee", "cat"))
    assert found.calibration == compute_calibration(answers)


def test_the_order_of_the_models_classes_does_not_matter() -> None:
    plain = AccuracyEvaluator().evaluate(subject(striped_model(("ant", "bee", "cat")))).accuracy
    loaded = striped_model(("cat", "ant", "bee"))  # the same weights under other names: its ants are the other's cats
    other = AccuracyEvaluator().evaluate(subject(loaded, stripes())).accuracy
    rows = {each.name: each.correct for each in other.classes}
    truth = plain.confusion_matrix
    assert rows == {"cat": truth[2, 0], "ant": truth[0, 1], "bee": truth[1, 2]}


def test_other_classes_and_no_head_are_refused_before_any_work() -> None:
    AccuracyEvaluator().check(subject())
    with raises("data.unknown_class", "1 of the 3", "cat"):
        AccuracyEvaluator().check(subject(striped_model(("ant", "bee", "dog"))))
    with raises("config.unsupported", "--with accuracy"):
        AccuracyEvaluator().check(subject(striped_model(())))
