"""The linear probe: logistic regression on frozen features.  N images, D width, K classes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitral.core.config import Config
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.subject import SubjectModel, stratified_folds

GRID = tuple(10.0**power for power in range(1, -7, -1))  # of l2; the strongest first, as each warm-starts the next
FOLDS = 5  # one of them validates
STEPS = 1_000
FLAT = 1e-5  # largest gradient at convergence


class LinearTrial(Config):
    """The validation accuracy of one l2."""

    l2: float
    accuracy: float


class LinearResult(Config):
    """The accuracy of a linear probe."""

    kind: Literal["linear"] = "linear"
    images: int
    train_images: int  # that the final probe is fitted to
    l2: float
    top1: float
    ci95: Interval  # of top1
    converged: bool  # otherwise more steps might change the accuracy
    trials: tuple[LinearTrial, ...]  # from which l2 was chosen: the best, of equals the strongest


class LinearEvaluator(Config):
    """Multinomial logistic regression by L-BFGS on standardized features.

    l2 is chosen on a fifth of the training images; the final probe is fitted to all of them.
    """

    kind: Literal["linear"] = "linear"

    def check(self, subject: SubjectModel) -> None:
        subject.check_training_images(self.kind)

    def evaluate(self, subject: SubjectModel) -> LinearResult:
        train, test = subject.features("train"), subject.features(subject.split)
        classes = len(subject.samples.classes)
        trials = validate_grid(train.values, train.labels, classes, subject.context.seed)
        l2 = best_l2(trials)
        standardizer, probe = fit_probe(train.values, train.labels, classes, l2)
        features, images = standardizer.apply(test.values), len(test.labels)
        correct = count_correct(probe.weights, features, test.labels)
        return LinearResult(
            images=images,
            train_images=len(train.labels),
            l2=l2,
            top1=correct / images,
            ci95=wilson_interval(correct, images),
            converged=probe.converged,
            trials=trials,
        )


class Standardizer(NamedTuple):
    """Mean and standard deviation of the training features."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    def apply(self, features: Tensor) -> Tensor:
        """Standardized features (N, D), float64."""
        return (features.double() - self.mean) / self.std


class Probe(NamedTuple):
    """A fitted linear map."""

    weights: Tensor  # (D + 1, K), float64, the last row the bias
    converged: bool


def best_l2(trials: Sequence[LinearTrial]) -> float:
    """The l2 of the best trial, of equals the strongest."""
    return max(trials, key=lambda trial: trial.accuracy).l2


def one_standard_error_l2(trials: Sequence[LinearTrial], images: int) -> float:
    """The strongest l2 within one standard error of the best, for this many validation images."""
    top = max(trial.accuracy for trial in trials)
    error = (top * (1 - top) / images) ** 0.5
    return next(trial.l2 for trial in trials if trial.accuracy >= top - error)


def fit_probe(features: Tensor, labels: Tensor, classes: int, l2: float) -> tuple[Standardizer, Probe]:
    """The probe of one l2, fitted to all features (N, D) and labels (N,), and the standardization of its features."""
    standardizer = fit_standardizer(features)
    start = torch.zeros(features.shape[1] + 1, classes, dtype=torch.float64)
    return standardizer, fit_logistic(standardizer.apply(features), labels, l2, start)


def fit_head(features: Tensor, labels: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """A probe as a linear head for unstandardized features: weight (K, D) and bias (K,), float32.

    It is regularized by the one-standard-error rule: fine-tuning starts from it, and the gradients through a head of
    large weights would damage the features in the first steps.
    """
    trials = validate_grid(features, labels, classes, seed)
    l2 = one_standard_error_l2(trials, max(1, len(labels) // FOLDS))
    standardizer, probe = fit_probe(features, labels, classes, l2)
    weight = (probe.weights[:-1] / standardizer.std[:, None]).mT  # (K, D)
    bias = probe.weights[-1] - weight @ standardizer.mean  # (K,)
    return weight.float().contiguous(), bias.float()


def fit_standardizer(features: Tensor) -> Standardizer:
    """The statistics of these features; a constant feature becomes zero."""
    wide = features.double()
    std = wide.std(dim=0, correction=0)  # (D,)
    return Standardizer(wide.mean(dim=0), torch.where(std == 0, 1, std))


def validate_grid(features: Tensor, labels: Tensor, classes: int, seed: int) -> tuple[LinearTrial, ...]:
    """The accuracy of each l2 of the grid on one fold, fitted to the others."""
    held_out = torch.from_numpy(stratified_folds(labels.numpy(), min(FOLDS, len(labels)), seed)) == 0  # (N,)
    standardizer = fit_standardizer(features[~held_out])
    training, validation = standardizer.apply(features[~held_out]), standardizer.apply(features[held_out])
    weights = torch.zeros(features.shape[1] + 1, classes, dtype=torch.float64)
    trials = []
    for l2 in GRID:
        weights = fit_logistic(training, labels[~held_out], l2, weights).weights
        correct = count_correct(weights, validation, labels[held_out])
        trials.append(LinearTrial(l2=l2, accuracy=correct / int(held_out.sum())))
    return tuple(trials)


def fit_logistic(features: Tensor, labels: Tensor, l2: float, start: Tensor) -> Probe:
    """Minimize the mean cross-entropy plus l2 / 2 times the squared weights; the bias is not regularized.

    scikit-learn's C is 1 / (l2 N).
    """
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=STEPS,
        max_eval=2 * STEPS,
        tolerance_grad=FLAT,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(logits(weights, features), labels) + l2 / 2 * weights[:-1].square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
        loss()
    assert weights.grad is not None
    return Probe(weights.detach(), bool(weights.grad.abs().max() <= FLAT))


def logits(weights: Tensor, features: Tensor) -> Tensor:
    """The logits (N, K) of the map."""
    return torch.addmm(weights[-1], features, weights[:-1])  # (N, K)


def count_correct(weights: Tensor, features: Tensor, labels: Tensor) -> int:
    """How many images the map classifies correctly."""
    return int((logits(weights, features).argmax(dim=1) == labels).sum())
