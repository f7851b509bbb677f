"""Calibration errors and temperatures against SciPy, brute force and models of known calibration."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

from tests.evaluation.subjects import striped_model, stripes, subject
from tests.evaluation.test_accuracy import answers_of, random_answers
from vitral.core.activation import Activation
from vitral.evaluation.calibration import NO_GAIN, CalibrationEvaluator, compute_errors, fit_temperature, scale
from vitral.evaluation.subject import Predictions


def drawn(images: int, temperature: float, activation: Activation = "softmax") -> Predictions:
    """Logits that are `temperature` times those that the labels were drawn from."""
    rng = np.random.default_rng(1)
    logits = rng.normal(scale=1.5, size=(images, 4))
    labels = np.array([rng.choice(4, p=row) for row in softmax(logits, axis=1)])
    return answers_of((temperature * logits).tolist(), labels.tolist())._replace(activation=activation)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_the_temperature_has_the_least_loss(activation: Activation) -> None:
    answers = drawn(800, 2.5, activation)
    z, hot = answers.logits.double().numpy(), np.eye(4)[answers.labels]

    def loss(t: float) -> float:
        if activation == "softmax":
            return float(-(hot * log_softmax(z / t, axis=1)).sum(axis=1).mean())
        return float(-(hot * np.log(expit(z / t)) + (1 - hot) * np.log(expit(-z / t))).sum(axis=1).mean())

    best = minimize_scalar(loss, bounds=(0.05, 50), method="bounded", options={"xatol": 1e-9})
    found = fit_temperature(answers)
    assert found == pytest.approx(best.x, rel=1e-5)
    assert compute_errors(answers).nll == pytest.approx(loss(1.0))
    assert compute_errors(scale(answers, found or 0)).nll == pytest.approx(best.fun)
    if activation == "softmax":
        assert found == pytest.approx(2.5, rel=0.15)


def test_logits_without_a_best_temperature_have_none() -> None:
    assert fit_temperature(answers_of([[3.0, 0.0], [0.0, 2.0]], [0, 1])) is None
    assert fit_temperature(answers_of([[3.0, 0.0], [0.0, 2.0]], [1, 0])) is None


def test_errors_agree_with_brute_force() -> None:
    answers = random_answers(300, 5)
    found = compute_errors(answers)
    p, labels = softmax(answers.logits.double().numpy(), axis=1), answers.labels.numpy()
    total = 0.0
    for label in range(5):
        numbers = np.clip(np.ceil(p[:, label] * 15), 1, 15)
        for number in set(numbers):
            here = numbers == number
            total += here.mean() * abs(p[here, label].mean() - (labels[here] == label).mean()) / 5
    assert found.classwise_ece == pytest.approx(total)
    order = np.argsort(p.max(axis=1), kind="stable")
    gaps = [abs((p.max(axis=1) - (p.argmax(axis=1) == labels))[part].sum()) for part in np.array_split(order, 15)]
    assert found.ece_equal_mass == pytest.approx(sum(gaps) / 300)


def test_chance_explains_the_error_of_a_calibrated_model_and_not_of_an_overconfident_one() -> None:
    calibrated, sure = compute_errors(drawn(300, 1.0)), compute_errors(drawn(300, 4.0))
    assert 0.01 < calibrated.ece_by_chance < calibrated.ece_by_chance_p95
    assert calibrated.ece < calibrated.ece_by_chance_p95
    assert sure.ece > 2 * sure.ece_by_chance_p95


def test_it_is_fitted_on_val_and_never_on_training_or_test_images() -> None:
    plain = stripes()
    none = CalibrationEvaluator().evaluate(subject(samples=plain))
    assert (none.temperature, none.scaled, none.fit_split) == (None, None, "")
    assert "there are 0" in none.note
    items = tuple(item._replace(split="val") if item.split == "train" else item for item in plain.items)
    apart = subject(striped_model(seed=2), replace(plain, items=items))
    found = CalibrationEvaluator().evaluate(apart)
    held = apart.predictions(apart.train_size, "val")
    assert (found.fit_split, found.fit_images, found.images) == ("val", 36, 18)
    assert found.temperature == fit_temperature(held)
    assert found.scaled == compute_errors(scale(apart.predictions(apart.train_size), found.temperature or 0))
    only = replace(subject(striped_model(seed=2), replace(plain, items=items)), split="val")
    crossed = CalibrationEvaluator().evaluate(only)
    assert crossed.temperature == found.temperature
    assert crossed.scaled != compute_errors(scale(held, found.temperature or 0))  # by temperatures of other images
    assert "cross-fitting" in crossed.note


def test_a_model_with_a_temperature_divides_its_logits_and_is_fitted_beyond_it() -> None:
    torch.manual_seed(0)
    plain, hot = striped_model(), striped_model()
    config = hot.bundle.model.model_copy(update={"head": hot.bundle.model.head.model_copy(update={"temperature": 2.0})})
    model = config.build().eval()
    model.load_state_dict(plain.model.state_dict())
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(model(images), plain.model(images) / 2)


def test_a_temperature_that_does_not_lower_the_loss_is_said_to_be_no_gain() -> None:
    plain = stripes()
    items = tuple(item._replace(split="val") if item.split == "train" else item for item in plain.items)
    only = replace(subject(striped_model(seed=2), replace(plain, items=items)), split="val")
    first = CalibrationEvaluator().evaluate(only)
    assert not first.note.endswith(NO_GAIN)
    head = only.bundle.model.head.model_copy(update={"temperature": first.temperature})
    config = only.bundle.model.model_copy(update={"head": head})
    model = config.build().eval()
    model.load_state_dict(only.model.state_dict())
    # It has the least loss on these images now, so temperatures from parts of them can only raise it.
    again = CalibrationEvaluator().evaluate(
        replace(only, model=model, bundle=only.bundle.model_copy(update={"model": config}))
    )
    assert again.note.endswith(NO_GAIN)
