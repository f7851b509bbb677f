"""Top-1 and top-5 accuracy, loss and confusion of the model's predictions.  N images, K classes."""

from collections.abc import Sequence
from math import sqrt
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vitral.core.config import Config
from vitral.data.transforms.mixup import one_hot
from vitral.evaluation.subject import ROWS, Labels, Predictions, SubjectModel, check_finite
from vitral.tasks.classify import Sigmoid

BINS = 15


class Bin(Config):
    """Predictions with confidence above `low` and at most `high`; null where there are none."""

    low: float
    high: float
    images: int
    confidence: float | None  # mean
    accuracy: float | None


class Calibration(Config):
    """How far the probabilities are from the outcomes. For `ece` and `brier`, 0 is perfect."""

    ece: float  # expected calibration error: the gap between confidence and accuracy, averaged over the bins by images
    brier: float  # squared distance of the probabilities from the one-hot label, summed over classes
    mean_confidence: float  # above the accuracy, the model is overconfident
    bins: tuple[Bin, ...]


def compute_calibration(predictions: Predictions) -> Calibration:
    """The calibration of predictions, over 15 bins of equal width (arXiv 1706.04599)."""
    confidences = predictions.confidence  # (N,)
    correct = (predictions.predicted == predictions.labels).double()  # (N,)
    numbers = (confidences * BINS).ceil().long().clamp(1, BINS) - 1  # (N,)
    counts, confidence, accuracy = (
        torch.bincount(numbers, weights, BINS).tolist()
        for weights in (torch.ones_like(confidences), confidences, correct)
    )
    bins = tuple(
        Bin(
            low=number / BINS,
            high=(number + 1) / BINS,
            images=int(count),
            confidence=confidence[number] / count if count else None,
            accuracy=accuracy[number] / count if count else None,
        )
        for number, count in enumerate(counts)
    )
    gaps = sum(abs(claimed - actual) for claimed, actual in zip(confidence, accuracy, strict=True))
    mean = confidences.mean().item()
    return Calibration(ece=gaps / len(confidences), brier=_brier(predictions), mean_confidence=mean, bins=bins)


def _brier(predictions: Predictions) -> float:
    distances = [
        chunk.square().sum(dim=1) - 2 * chunk.gather(1, labels[:, None])[:, 0] + 1  # (p - 1)^2 for the label
        for chunk, labels in zip(predictions.probabilities(), predictions.labels.split(ROWS), strict=True)
    ]
    return torch.cat(distances).mean().item()


Z = 1.959963984540054  # 95% of a normal distribution lies within this many standard deviations


class Interval(Config):
    """A 95% confidence interval."""

    low: float
    high: float


class ConfusionCount(Config):
    """A nonzero cell of the confusion matrix."""

    label: int
    prediction: int
    images: int


class ClassAccuracy(Config):
    """Results for one class; a ratio with nothing to count is null."""

    name: str
    images: int
    correct: int
    predicted: int  # images predicted as this class, correct or not
    recall: float | None
    precision: float | None
    f1: float | None
    most_confused_with: str  # the most frequent wrong prediction; empty if there was none
    most_confused_count: int


class Accuracy(Config):
    """Accuracy of predictions. Of equal logits, the first class is predicted."""

    images: int
    top1: float
    ci95: Interval  # of top1
    top5: float | None  # null for 5 classes or fewer
    loss: float  # cross-entropy of softmax, or of sigmoid summed over classes, as the model was trained
    majority_baseline: float  # top1 of always predicting the most frequent class
    classes: tuple[ClassAccuracy, ...]
    confusion_counts: tuple[ConfusionCount, ...]  # nonzero cells only: the matrix of a thousand classes has a million

    @property
    def confusion_matrix(self) -> NDArray[np.int64]:
        """Images of each class (row) by prediction (column), (K, K)."""
        counts = np.zeros((len(self.classes), len(self.classes)), dtype=np.int64)
        for cell in self.confusion_counts:
            counts[cell.label, cell.prediction] = cell.images
        return counts


def compute_accuracy(predictions: Predictions, classes: Sequence[str]) -> Accuracy:
    """The accuracy of predictions; `classes` are the names by label."""
    logits, labels = predictions.logits, predictions.labels
    assert len(labels) > 0
    assert logits.shape == (len(labels), len(classes))
    check_finite(logits, "logits")
    ranks = label_ranks(logits, labels)
    counts = _confusion_counts(labels.numpy(), predictions.predicted.numpy(), len(classes))
    correct, images = int((ranks == 0).sum()), len(labels)
    return Accuracy(
        images=images,
        top1=correct / images,
        ci95=wilson_interval(correct, images),
        top5=int((ranks < 5).sum()) / images if len(classes) > 5 else None,
        loss=prediction_losses(predictions).double().mean().item(),
        majority_baseline=int(labels.bincount().max()) / images,
        classes=_by_class(counts, classes),
        confusion_counts=counts,
    )


def prediction_losses(predictions: Predictions) -> Tensor:
    """The cross-entropy of each image (N,)."""
    logits, labels = predictions.logits, predictions.labels
    if predictions.activation == "sigmoid":
        return Sigmoid().losses(logits, one_hot(labels, logits.shape[1]))
    return functional.cross_entropy(logits, labels, reduction="none")


def label_ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes rank before the label (N,): those of greater logit, and those of equal logit that come first."""
    own = logits.gather(1, labels[:, None])  # (N, 1)
    before = torch.arange(logits.shape[1]) < labels[:, None]  # (N, K)
    return ((logits > own) | ((logits == own) & before)).sum(dim=1)  # (N,)


def wilson_interval(correct: int, images: int) -> Interval:
    """The Wilson score interval, which also holds near 0 and 1 and for few images."""
    share = correct / images
    middle = share + Z * Z / (2 * images)
    reach = Z * sqrt(share * (1 - share) / images + Z * Z / (4 * images * images))
    scale = 1 + Z * Z / images
    return Interval(low=max(0.0, (middle - reach) / scale), high=min(1.0, (middle + reach) / scale))


def _confusion_counts(labels: Labels, predicted: Labels, classes: int) -> tuple[ConfusionCount, ...]:
    codes, counts = np.unique(labels * classes + predicted, return_counts=True)
    return tuple(
        ConfusionCount(label=code // classes, prediction=code % classes, images=count)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    )


def _by_class(cells: Sequence[ConfusionCount], names: Sequence[str]) -> tuple[ClassAccuracy, ...]:
    images, predicted, correct, confused = ([0] * len(names) for _ in range(4))
    confused_with = [""] * len(names)
    for cell in cells:
        images[cell.label] += cell.images
        predicted[cell.prediction] += cell.images
        if cell.label == cell.prediction:
            correct[cell.label] = cell.images
        elif cell.images > confused[cell.label]:
            confused[cell.label], confused_with[cell.label] = cell.images, names[cell.prediction]
    return tuple(
        ClassAccuracy(
            name=name,
            images=images[label],
            correct=correct[label],
            predicted=predicted[label],
            recall=_ratio(correct[label], images[label]),
            precision=_ratio(correct[label], predicted[label]),
            f1=_ratio(2 * correct[label], images[label] + predicted[label]),
            most_confused_with=confused_with[label],
            most_confused_count=confused[label],
        )
        for label, name in enumerate(names)
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class AccuracyResult(Config):
    """Accuracy and calibration of the model's predictions."""

    kind: Literal["accuracy"] = "accuracy"
    accuracy: Accuracy
    calibration: Calibration


class AccuracyEvaluator(Config):
    """Evaluates the predictions of the model's own head; classes are matched by name."""

    kind: Literal["accuracy"] = "accuracy"

    def check(self, subject: SubjectModel) -> None:
        subject.check_classes(self.kind)

    def evaluate(self, subject: SubjectModel) -> AccuracyResult:
        predictions = subject.predictions(subject.train_size)
        accuracy = compute_accuracy(predictions, subject.bundle.classes)
        return AccuracyResult(accuracy=accuracy, calibration=compute_calibration(predictions))
