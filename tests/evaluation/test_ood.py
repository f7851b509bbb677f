"""Out-of-distribution scores against scikit-learn and brute force in float64."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes, subject, tools
from vitral.evaluation.evaluators import run_evaluators
from vitral.evaluation.ood import OodEvaluator, OodResult, SharedCovariance, auroc, energy_scores, fpr_at, knn_scores
from vitral.evaluation.subject import LabeledFeatures


def test_mahalanobis_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    train, labels = rng.normal(size=(90, 6)) @ rng.normal(size=(6, 6)), np.arange(90) % 3
    others = rng.normal(size=(40, 6))
    found = SharedCovariance(LabeledFeatures(torch.from_numpy(train), torch.from_numpy(labels)))
    means = np.array([train[labels == label].mean(axis=0) for label in range(3)])
    oracle = EmpiricalCovariance(assume_centered=True).fit(train - means[labels])
    distances = np.array([oracle.mahalanobis(others - mean) for mean in means])
    assert found.scores(torch.from_numpy(others)) == pytest.approx(-distances.min(axis=0))
    assert found.rank == 6


def test_a_direction_without_variance_is_left_out() -> None:
    train = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    train[:, 3] = train[:, 0]
    found = SharedCovariance(LabeledFeatures(train, torch.arange(50) % 2))
    assert found.rank == 3
    assert np.isfinite(found.scores(train)).all()


def test_knn_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    train, others = rng.normal(size=(60, 5)), rng.normal(size=(30, 5))
    oracle = NearestNeighbors(n_neighbors=7).fit(normalize(train)).kneighbors(normalize(others))[0][:, -1]
    assert knn_scores(torch.from_numpy(train), torch.from_numpy(others), 7) == pytest.approx(-oracle)


def test_the_rates_agree_with_scikit_learn_also_of_equal_scores() -> None:
    rng = np.random.default_rng(2)
    inside, outside = (rng.integers(*span).astype(np.float64) for span in ((2, 12, 83), (0, 9, 57)))
    truth, scores = np.repeat([1, 0], [83, 57]), np.concatenate([inside, outside])
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(truth, scores))
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert fpr_at(inside, outside) == pytest.approx(fpr[np.argmax(tpr >= 0.95)])


def test_energy_is_that_of_the_models_logits_before_a_temperature() -> None:
    whole = subject()
    logits = whole.predictions(whole.train_size).logits.double().numpy()
    features = whole.features("test").values
    assert energy_scores(whole, features) == pytest.approx(logsumexp(logits, axis=1), rel=1e-5)
    sigmoid = striped_model()
    sigmoid = sigmoid._replace(bundle=sigmoid.bundle.model_copy(update={"activation": "sigmoid"}))
    assert energy_scores(subject(sigmoid), features) == pytest.approx(np.logaddexp(0, logits).sum(axis=1), rel=1e-5)


def test_other_images_are_scored_and_must_be_given() -> None:
    means = tools()._replace(ood_data=stripes(("x", "y")))
    (found,) = run_evaluators([OodEvaluator(k=3)], subject(means=means))
    assert isinstance(found, OodResult)
    assert [score.name for score in found.scores] == ["confidence", "energy", "mahalanobis", "knn"]
    assert (found.images, found.ood_images, found.train_images, found.k) == (18, 36, 36, 3)
    headless = run_evaluators([OodEvaluator()], subject(striped_model(()), means=means))[0]
    assert isinstance(headless, OodResult)
    assert [score.name for score in headless.scores] == ["mahalanobis", "knn"]
    with raises("config.missing_value", "--ood-data"):
        run_evaluators([OodEvaluator()], subject())
