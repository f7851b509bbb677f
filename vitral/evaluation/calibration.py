"""Whether a model is right as often as it is sure.  N images, K classes."""

import torch

from vitral.core.config import Config
from vitral.evaluation.outputs import ROWS, Predictions

BINS = 15


class Bin(Config):
    """The answers whose probability is above `low` and at most `high`; null where there are none."""

    low: float
    high: float
    images: int
    confidence: float | None  # the mean probability of the answers
    accuracy: float | None


class Calibration(Config):
    """How far what the model says of its answers is from how they turn out; 0 is perfect for each."""

    error: float  # expected calibration error: the gap between confidence and accuracy, a mean over images by bin
    brier: float  # the squared distance of the probabilities from the truth, summed over classes; at most 2
    confidence: float  # the mean probability of the answers: above the accuracy, the model is too sure of itself
    bins: tuple[Bin, ...]


def compute_calibration(answers: Predictions) -> Calibration:
    """The calibration of the softmax of the answers, over 15 bins of equal width (arXiv 1706.04599)."""
    sure = answers.sure  # (N,)
    right = (answers.given == answers.labels).double()  # (N,)
    numbers = (sure * BINS).ceil().long().clamp(1, BINS) - 1  # (N,)
    counts, confidence, accuracy = (
        torch.bincount(numbers, weights, BINS).tolist() for weights in (torch.ones_like(sure), sure, right)
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
    gaps = sum(abs(said - turned_out) for said, turned_out in zip(confidence, accuracy, strict=True))
    return Calibration(
        error=gaps / len(sure),
        brier=_brier(answers),
        confidence=sure.mean().item(),
        bins=bins,
    )


def _brier(answers: Predictions) -> float:
    distances = [
        chances.square().sum(dim=1) - 2 * chances.gather(1, labels[:, None])[:, 0] + 1  # (p - 1)^2 for the right class
        for chances, labels in zip(answers.chances(), answers.labels.split(ROWS), strict=True)
    ]
    return torch.cat(distances).mean().item()
