"""The linear probe against scikit-learn's logistic regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from tests.errors import raises
from tests.evaluation.subjects import stripes, subject, without
from vitral.evaluation import linear_probe
from vitral.evaluation.linear_probe import (
    GRID,
    LinearEvaluator,
    LinearTrial,
    best_l2,
    count_correct,
    fit_head,
    fit_logistic,
    fit_probe,
    fit_standardizer,
    logits,
    one_standard_error_l2,
    validate_grid,
)
from vitral.evaluation.subject import LabeledFeatures, stratified_folds

CLASSES, WIDTH = 6, 20


def cloud(images: int, seed: int) -> LabeledFeatures:
    """Classes that overlap, of features of unlike scales; one of them never changes."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (images,), generator=rng)
    middles = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(9))
    rows = middles[labels] + 1.6 * torch.randn(images, WIDTH, generator=rng)
    rows = rows * torch.logspace(-3, 2, WIDTH) + 5
    rows[:, 4] = 0.1
    return LabeledFeatures(rows, labels)


TRAIN, TEST = cloud(600, seed=0), cloud(2000, seed=1)


def probed(features: Tensor, labels: Tensor, l2: float, asked: Tensor) -> tuple[Tensor, object]:
    """Our weights and theirs, for the same standardized features, with theirs as a fitted estimator."""
    scale = fit_standardizer(features)
    probe = fit_logistic(scale.apply(features), labels, l2, torch.zeros(WIDTH + 1, CLASSES, dtype=torch.float64))
    assert probe.converged
    scaler = StandardScaler().fit(features.double().numpy())
    np.testing.assert_allclose(scaler.transform(asked.double().numpy()), scale.apply(asked).numpy(), atol=1e-9)
    theirs = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-8, max_iter=10_000)
    return probe.weights, theirs.fit(scaler.transform(features.double().numpy()), labels.numpy())


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_the_weights_are_those_of_scikit_learn(l2: float) -> None:
    ours, theirs = probed(TRAIN.values, TRAIN.labels, l2, TEST.values)
    assert isinstance(theirs, LogisticRegression)
    np.testing.assert_allclose(ours[:-1].numpy(), theirs.coef_.T, atol=2e-2 * np.abs(theirs.coef_).max())
    answers = theirs.predict(fit_standardizer(TRAIN.values).apply(TEST.values).numpy())
    truth = float(np.mean(answers == TEST.labels.numpy()))
    right = count_correct(ours, fit_standardizer(TRAIN.values).apply(TEST.values), TEST.labels)
    assert right / len(TEST.labels) == pytest.approx(truth, abs=0.002)
    assert 0.3 < truth < 0.95


def test_the_regularization_is_chosen_as_scikit_learn_would() -> None:
    found = validate_grid(TRAIN.values, TRAIN.labels, CLASSES, seed=4)
    assert [trial.l2 for trial in found] == list(GRID)
    aside = stratified_folds(TRAIN.labels.numpy(), 5, 4) == 0
    features, labels = TRAIN.values.double().numpy(), TRAIN.labels.numpy()
    scaler = StandardScaler().fit(features[~aside])
    for trial in found:
        theirs = LogisticRegression(C=1 / (trial.l2 * (~aside).sum()), tol=1e-8, max_iter=10_000)
        theirs.fit(scaler.transform(features[~aside]), labels[~aside])
        truth = theirs.score(scaler.transform(features[aside]), labels[aside])
        assert trial.accuracy == pytest.approx(truth, abs=1.5 / aside.sum())
    assert len({trial.accuracy for trial in found}) > 2


def test_images_that_were_set_aside_have_no_say_in_the_statistics() -> None:
    aside = np.flatnonzero(stratified_folds(TRAIN.labels.numpy(), 5, 4) == 0)
    values = TRAIN.values.clone()
    values[aside[0]] += 1e6
    before, after = (validate_grid(each, TRAIN.labels, CLASSES, seed=4) for each in (TRAIN.values, values))
    for one, other in zip(before, after, strict=True):
        assert other.accuracy == pytest.approx(one.accuracy, abs=1.01 / len(aside)), "but for that image itself"


def test_the_judge_fits_the_best_of_the_grid_to_all_training_images() -> None:
    whole = subject()
    found = LinearEvaluator().evaluate(whole)
    best = max(trial.accuracy for trial in found.trials)
    assert found.l2 == max(trial.l2 for trial in found.trials if trial.accuracy == best)
    known, asked = whole.features("train"), whole.features("test")
    scaler = StandardScaler().fit(known.values.double().numpy())
    theirs = LogisticRegression(C=1 / (found.l2 * len(known.labels)), tol=1e-8, max_iter=10_000)
    theirs.fit(scaler.transform(known.values.double().numpy()), known.labels.numpy())
    truth = theirs.score(scaler.transform(asked.values.double().numpy()), asked.labels.numpy())
    assert found.top1 == pytest.approx(truth, abs=0.002)
    assert (found.images, found.train_images, found.converged) == (18, 36, True)


def test_it_is_the_same_every_time() -> None:
    assert LinearEvaluator().evaluate(subject()) == LinearEvaluator().evaluate(subject())


def test_a_fit_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "STEPS", 2)
    start = torch.zeros(WIDTH + 1, CLASSES, dtype=torch.float64)
    assert not fit_logistic(fit_standardizer(TRAIN.values).apply(TRAIN.values), TRAIN.labels, 1e-4, start).converged


def test_without_training_images_it_is_refused() -> None:
    with raises("data.too_few", "linear", "'train'"):
        LinearEvaluator().check(subject(samples=without(stripes(), "train")))


def test_the_head_answers_features_as_they_are_as_the_probe_does() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.randn(3, 5, generator=rng)[labels] + torch.randn(60, 5, generator=rng)
    features = features * torch.tensor([1.0, 10.0, 0.1, 3.0, 0.0]) + 5.0  # at an odd scale; the last says nothing
    weight, bias = fit_head(features, labels, 3, seed=0)
    assert (weight.shape, bias.shape) == ((3, 5), (3,))
    l2 = one_standard_error_l2(validate_grid(features, labels, 3, seed=0), 12)
    scale, probe = fit_probe(features, labels, 3, l2)
    expected = logits(probe.weights, scale.apply(features))
    torch.testing.assert_close((features @ weight.mT + bias).double(), expected, atol=1e-4, rtol=0)
    assert not weight[:, 4].any()


def test_the_strongest_l2_that_is_as_good_as_the_best_is_the_modest_one() -> None:
    trials = [LinearTrial(l2=l2, accuracy=right) for l2, right in ((10, 0.5), (1, 0.78), (0.1, 0.8), (0.01, 0.9))]
    assert best_l2(trials) == 0.01
    assert one_standard_error_l2(trials, images=9) == 0.1  # a standard error of 0.1
    assert one_standard_error_l2(trials, images=4) == 1  # of 0.15
    assert one_standard_error_l2(trials, images=10_000) == 0.01


def test_few_images_of_many_numbers_are_not_learned_by_heart() -> None:
    """Separable by chance alone: a weak penalty would make the head as sure as can be, and fine-tuning begin badly."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 2
    weight, bias = fit_head(torch.randn(40, 300, generator=rng), labels, 2, seed=0)
    fresh = torch.randn(200, 300, generator=rng)
    assert torch.nn.functional.cross_entropy(fresh @ weight.mT + bias, torch.arange(200) % 2) < 2
