"""Calibration: how far confidences are from outcomes, and the temperature that brings them closer.

N images, K classes.  A temperature T divides the logits (arXiv 1706.04599): it changes no prediction. It is fitted on
held-out images, never on training images, which a model knows by heart, and never on those it is then measured on.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vitral.core.config import Config
from vitral.evaluation.accuracy import BINS, Bin, Calibration, compute_calibration, prediction_losses
from vitral.evaluation.subject import ROWS, Predictions, SubjectModel, check_finite, stratified_folds

FOLDS = 5
FEWEST = 20  # held-out images to fit with
DRAWS = 200  # of outcomes, for the error that chance alone gives
STEPS = 100  # of Newton's method at most; it takes about 8
LOWEST, HIGHEST = 1e-3, 1e3  # of the inverse temperature
NO_GAIN = "it does not lower the loss there, so the model is better left as it is"


class CalibrationErrors(Config):
    """Errors of probabilities; 0 is perfect for all but `nll`."""

    nll: float  # the loss: cross-entropy of softmax, or of sigmoid summed over classes
    brier: float  # squared distance from the one-hot label, summed over classes
    ece: float  # expected calibration error, over 15 bins of equal width
    ece_by_chance: float  # the mean that a perfectly calibrated model with these confidences would have
    ece_by_chance_p95: float  # and its 95th percentile: an error below it may be chance
    ece_equal_mass: float  # over 15 bins of equally many images
    classwise_ece: float  # over 15 bins for each class's probability, mean of the classes
    mean_confidence: float
    bins: tuple[Bin, ...]  # of `ece`: the reliability diagram


class CalibrationResult(Config):
    """Calibration as the model is, and with a temperature that was fitted on held-out images."""

    kind: Literal["calibration"] = "calibration"
    images: int
    accuracy: float
    now: CalibrationErrors
    stored_temperature: float  # of the model as it is, 1 if it has none
    temperature: float | None  # fitted, by which the present logits are divided; null where it could not be
    fit_images: int
    fit_split: str  # where the temperature is from; empty if none was fitted
    scaled: CalibrationErrors | None  # with the fitted temperature
    note: str  # how `scaled` was measured, or why there is none


class CalibrationEvaluator(Config):
    """Evaluates the probabilities of the model's own head, and fits a temperature."""

    kind: Literal["calibration"] = "calibration"

    def check(self, subject: SubjectModel) -> None:
        subject.check_classes(self.kind)

    def evaluate(self, subject: SubjectModel) -> CalibrationResult:
        predictions = subject.predictions(subject.train_size)
        check_finite(predictions.logits, "logits")
        seed = subject.context.seed
        fit = _fit(subject, predictions, seed)
        now, scaled = compute_errors(predictions, seed), compute_errors(fit.scaled, seed) if fit.scaled else None
        worse = scaled is not None and scaled.nll >= now.nll
        right = (predictions.predicted == predictions.labels).double().mean().item()
        return CalibrationResult(
            images=len(predictions.labels),
            accuracy=right,
            now=now,
            stored_temperature=getattr(subject.bundle.model.head, "temperature", 1.0),
            temperature=fit.temperature,
            fit_images=fit.images,
            fit_split=fit.split,
            scaled=scaled,
            note=f"{fit.note}; {NO_GAIN}" if worse else fit.note,
        )


class TemperatureFit(NamedTuple):
    """A fitted temperature, and the predictions to measure it on."""

    temperature: float | None
    images: int
    split: str
    scaled: Predictions | None
    note: str


def _fit(subject: SubjectModel, predictions: Predictions, seed: int) -> TemperatureFit:
    """Fit on val and measure on test; or, where val is all there is, fit on four fifths of it for the other fifth."""
    own = subject.split == "val"
    held = len(subject.samples.of("val"))
    if held < FEWEST:
        message = f"no temperature: it is fitted on at least {FEWEST} validation images, and there are {held}"
        return TemperatureFit(None, held, "", None, f"{message}; training images and those of test are not used")
    fitting = predictions if own else subject.predictions(subject.train_size, "val")
    check_finite(fitting.logits, "logits")
    temperature = fit_temperature(fitting)
    if temperature is None:
        why = "the predictions are no better than chance, or all are right"
        note = f"no temperature: none has the least loss on the {held} validation images; {why}"
        return TemperatureFit(None, held, "", None, note)
    if not own:
        note = f"fitted on {held:,} images of val, measured on {subject.split}"
        return TemperatureFit(temperature, held, "val", scale(predictions, temperature), note)
    folds = torch.from_numpy(stratified_folds(predictions.labels.numpy(), FOLDS, seed))  # (N,)
    logits = predictions.logits.double()
    for fold in range(FOLDS):
        part = fit_temperature(_rows(predictions, folds != fold))
        logits[folds == fold] /= temperature if part is None else part
    note = (
        f"fitted on all {held:,} images of val; measured by {FOLDS}-fold cross-fitting on the same images, each with a "
        "temperature from the others"
    )
    return TemperatureFit(temperature, held, "val", predictions._replace(logits=logits), note)


def _rows(predictions: Predictions, chosen: Tensor) -> Predictions:
    logits, labels, indices, activation = predictions
    return Predictions(logits[chosen], labels[chosen], indices[chosen], activation)


def scale(predictions: Predictions, temperature: float) -> Predictions:
    """The predictions with their logits divided by a temperature."""
    return predictions._replace(logits=predictions.logits.double() / temperature)


def fit_temperature(predictions: Predictions) -> float | None:
    """The temperature of least loss; None if the loss has no minimum in the range 0.001 to 1000.

    The loss is convex in the inverse temperature b: Newton's method within the bracket where its slope changes sign.
    """
    low, high = LOWEST, HIGHEST
    if _slope(predictions, low)[0] >= 0 or _slope(predictions, high)[0] <= 0:
        return None
    b = 1.0
    for _ in range(STEPS):
        slope, curvature = _slope(predictions, b)
        low, high = (b, high) if slope < 0 else (low, b)
        step = b - slope / curvature if curvature > 0 else low
        following = step if low < step < high else (low * high) ** 0.5
        if abs(following - b) <= 1e-12 * b:
            break
        b = following
    return 1 / b


def _slope(predictions: Predictions, b: float) -> tuple[float, float]:
    """The first and second derivative of the mean loss by the inverse temperature."""
    slope = curvature = 0.0
    for logits, labels in zip(predictions.logits.split(ROWS), predictions.labels.split(ROWS), strict=True):
        z = logits.double()  # (rows, K)
        own = z.gather(1, labels[:, None]).sum()
        if predictions.activation == "sigmoid":
            p = (b * z).sigmoid()
            slope += ((p * z).sum() - own).item()
            curvature += (p * (1 - p) * z * z).sum().item()
        else:
            p = (b * z).softmax(dim=1)
            mean = (p * z).sum(dim=1, keepdim=True)  # (rows, 1)
            slope += (mean.sum() - own).item()
            curvature += (p * (z - mean).square()).sum().item()
    return slope / len(predictions.labels), curvature / len(predictions.labels)


def compute_errors(predictions: Predictions, seed: int = 0) -> CalibrationErrors:
    """The calibration errors of predictions; the seed draws the outcomes of `ece_by_chance`."""
    found: Calibration = compute_calibration(predictions)
    confidence = predictions.confidence  # (N,)
    correct = (predictions.predicted == predictions.labels).double()  # (N,)
    chance = chance_errors(confidence, seed)
    return CalibrationErrors(
        nll=prediction_losses(predictions).double().mean().item(),
        brier=found.brier,
        ece=found.ece,
        ece_by_chance=float(chance.mean()),
        ece_by_chance_p95=float(np.quantile(chance, 0.95)),
        ece_equal_mass=_equal_mass_error(confidence, correct),
        classwise_ece=_classwise_error(predictions),
        mean_confidence=found.mean_confidence,
        bins=found.bins,
    )


def _bin_numbers(values: Tensor) -> Tensor:
    return (values * BINS).ceil().long().clamp(1, BINS) - 1


def chance_errors(confidence: Tensor, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The calibration errors (200,) of outcomes that are drawn with just these confidences (N,)."""
    rng = np.random.default_rng(seed)
    order = _bin_numbers(confidence).argsort(stable=True)
    sorted_confidence = confidence[order].numpy()
    starts = np.flatnonzero(np.diff(_bin_numbers(confidence)[order].numpy(), prepend=-1))
    errors = np.empty(DRAWS)
    for draw in range(DRAWS):
        gaps = sorted_confidence - (rng.random(len(confidence)) < sorted_confidence)  # (N,)
        errors[draw] = np.abs(np.add.reduceat(gaps, starts)).sum() / len(confidence)
    return errors


def _equal_mass_error(confidence: Tensor, correct: Tensor) -> float:
    gaps = (confidence - correct)[confidence.argsort(stable=True)]  # (N,)
    parts = np.array_split(gaps.numpy(), min(BINS, len(gaps)))
    return sum(abs(float(part.sum())) for part in parts) / len(gaps)


def _classwise_error(predictions: Predictions) -> float:
    """The gap between the probability of a class and its frequency, by bins of that probability (arXiv 1910.12656)."""
    classes = predictions.logits.shape[1]
    gaps = torch.zeros(classes * BINS, dtype=torch.float64)
    offset = torch.arange(classes) * BINS  # (K,)
    for chunk, labels in zip(predictions.probabilities(), predictions.labels.split(ROWS), strict=True):
        hits = functional.one_hot(labels, classes).double()  # (rows, K)
        places = (_bin_numbers(chunk) + offset).flatten()
        gaps += torch.bincount(places, (chunk - hits).flatten(), classes * BINS)
    return gaps.abs().sum().item() / (len(predictions.labels) * classes)
