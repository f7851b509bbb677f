"""Calibration: whether confidence matches accuracy.  N images, K classes."""

import torch

from vitral.core.config import Config
from vitral.evaluation.outputs import ROWS, Predictions

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
