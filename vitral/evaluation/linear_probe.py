"""The linear probe: logistic regression on frozen features.  N images, D width, K classes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vitral.core.config import Config
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.subject import SubjectModel, stratified_folds

GRID = tuple(10.0**power for power in range(1, -7, -1))  # the strongest first: each start is near the next optimum
FOLDS = 5  # one of which is set aside to choose by
STEPS = 1_000
FLAT = 1e-5  # the largest slope at which the optimum counts as reached


class LinearTrial(Config):
    """How often a probe of this regularization was right about the training images that were set aside."""

    l2: float
    accuracy: float


class LinearResult(Config):
    """The judgment by a linear probe."""

    kind: Literal["linear"] = "linear"
    images: int
    training: int  # images that the probe was fitted to in the end
    l2: float
    top1: float
    interval: Interval  # of top1
    converged: bool  # whether the optimum was reached; else more steps might change the number
    trials: tuple[LinearTrial, ...]  # that l2 was chosen by: the best, of equals the strongest


class LinearEvaluator(Config):
    """Multinomial logistic regression by L-BFGS on standardized features.

    l2 is chosen on a fifth of the training images, then the probe is fitted to all of them.
    """

    kind: Literal["linear"] = "linear"

    def check(self, subject: SubjectModel) -> None:
        subject.need_training(self.kind)

    def judge(self, subject: SubjectModel) -> LinearResult:
        known, asked = subject.vectors("train"), subject.vectors(subject.split)
        classes = len(subject.samples.classes)
        trials = validate_grid(known.values, known.labels, classes, subject.tools.seed)
        l2 = best_l2(trials)
        scale, probe = fit_probe(known.values, known.labels, classes, l2)
        right, images = count_correct(probe.weights, scale.apply(asked.values), asked.labels), len(asked.labels)
        return LinearResult(
            images=images,
            training=len(known.labels),
            l2=l2,
            top1=right / images,
            interval=wilson_interval(right, images),
            converged=probe.converged,
            trials=trials,
        )


class Standardizer(NamedTuple):
    """The statistics of features to learn from."""

    mean: Tensor  # (D,)
    deviation: Tensor  # (D,)

    def apply(self, features: Tensor) -> Tensor:
        """Features (N, D) of mean 0 and deviation 1 over those images, float64."""
        return (features.double() - self.mean) / self.deviation


class Probe(NamedTuple):
    """A fitted map."""

    weights: Tensor  # (D + 1, K), float64, the last row the bias
    converged: bool


def best_l2(trials: Sequence[LinearTrial]) -> float:
    """The l2 of the best trial, of equals the strongest."""
    return max(trials, key=lambda trial: trial.accuracy).l2


def one_standard_error_l2(trials: Sequence[LinearTrial], images: int) -> float:
    """The strongest l2 that cannot be told from the best by so many images: it is within their standard error."""
    top = max(trial.accuracy for trial in trials)
    error = (top * (1 - top) / images) ** 0.5
    return next(trial.l2 for trial in trials if trial.accuracy >= top - error)


class StandardizedProbe(NamedTuple):
    """A probe of one l2, fitted to all images."""

    scale: Standardizer
    probe: Probe


def fit_probe(features: Tensor, labels: Tensor, classes: int, l2: float) -> StandardizedProbe:
    """The probe of features (N, D) and labels (N,)."""
    scale = fit_standardizer(features)
    start = torch.zeros(features.shape[1] + 1, classes, dtype=torch.float64)
    return StandardizedProbe(scale, fit_logistic(scale.apply(features), labels, l2, start))


def fit_head(features: Tensor, labels: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """A probe as a head for features as they are: weight (K, D) and bias (K,), float32.

    It is no surer than the images warrant. Tuning starts from it, and through a head of large weights the first steps
    would tear the features apart.
    """
    trials = validate_grid(features, labels, classes, seed)
    scale, probe = fit_probe(features, labels, classes, one_standard_error_l2(trials, max(1, len(labels) // FOLDS)))
    weight = (probe.weights[:-1] / scale.deviation[:, None]).mT  # (K, D)
    bias = probe.weights[-1] - weight @ scale.mean  # (K,)
    return weight.float().contiguous(), bias.float()


def fit_standardizer(features: Tensor) -> Standardizer:
    """The statistics of these features; one that never changes is left at zero."""
    wide = features.double()
    deviation = wide.std(dim=0, correction=0)  # (D,)
    return Standardizer(wide.mean(dim=0), torch.where(deviation == 0, 1, deviation))


def validate_grid(features: Tensor, labels: Tensor, classes: int, seed: int) -> tuple[LinearTrial, ...]:
    """How right the probe of each l2 of the grid is about the part set aside, fitted to the rest."""
    aside = torch.from_numpy(stratified_folds(labels.numpy(), min(FOLDS, len(labels)), seed)) == 0  # (N,)
    scale = fit_standardizer(features[~aside])
    fitting, judging = scale.apply(features[~aside]), scale.apply(features[aside])
    weights = torch.zeros(features.shape[1] + 1, classes, dtype=torch.float64)
    trials = []
    for l2 in GRID:
        weights = fit_logistic(fitting, labels[~aside], l2, weights).weights
        right = count_correct(weights, judging, labels[aside])
        trials.append(LinearTrial(l2=l2, accuracy=right / int(aside.sum())))
    return tuple(trials)


def fit_logistic(features: Tensor, labels: Tensor, l2: float, start: Tensor) -> Probe:
    """The minimum of the mean cross-entropy plus l2 / 2 times the squared weights, the bias free.

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
    """The answers (N, K) of the map."""
    return torch.addmm(weights[-1], features, weights[:-1])  # (N, K)


def count_correct(weights: Tensor, features: Tensor, labels: Tensor) -> int:
    """How many images the map tells right."""
    return int((logits(weights, features).argmax(dim=1) == labels).sum())
