"""How many answers are right, and which are taken for which.  N images, K classes.

The judge of answers: how often the model names the right class, and whether it knows when it does not.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vitral.core.config import Config
from vitral.evaluation.calibration import Calibration, compute_calibration
from vitral.evaluation.outputs import Predictions, check_finite
from vitral.evaluation.subject import SubjectModel

Z = 1.959963984540054  # 95 % of a normal distribution lies within so many deviations


class Interval(Config):
    """Where the share lies that an endless set of such images would give: 95 of 100 such intervals hold it."""

    low: float
    high: float


class ConfusionCount(Config):
    """Images of one class that were given one answer, the right one or another."""

    label: int
    answer: int
    images: int


class ClassAccuracy(Config):
    """One class. A share of nothing is null: recall without images, precision without answers, F1 without both."""

    name: str
    images: int
    right: int
    answers: int  # how often the class was given, rightly or not
    recall: float | None
    precision: float | None
    f1: float | None
    taken_for: str  # the wrong answer that its images were given most often; empty where there was none
    times: int


class Accuracy(Config):
    """The judgment of one set of answers. Of equal logits the first class is the answer."""

    images: int
    top1: float
    interval: Interval  # of top1
    top5: float | None  # null where there are no more than 5 classes
    loss: float  # softmax cross-entropy
    usual: float  # the top1 of naming the commonest class every time
    classes: tuple[ClassAccuracy, ...]
    pairs: tuple[ConfusionCount, ...]  # those that occur: of a thousand classes, a million could

    @property
    def confusion(self) -> NDArray[np.int64]:
        """How many images of each class (row) were given each answer (column), (K, K)."""
        counts = np.zeros((len(self.classes), len(self.classes)), dtype=np.int64)
        for pair in self.pairs:
            counts[pair.label, pair.answer] = pair.images
        return counts


def compute_accuracy(answers: Predictions, classes: Sequence[str]) -> Accuracy:
    """The accuracy of the answers over the classes, named in the order of their labels."""
    logits, labels = answers.logits, answers.labels
    assert len(labels) > 0
    assert logits.shape == (len(labels), len(classes))
    check_finite(logits, "answers to")
    ranks = label_ranks(logits, labels)
    pairs = _pairs(labels.numpy(), answers.given.numpy(), len(classes))
    right, images = int((ranks == 0).sum()), len(labels)
    return Accuracy(
        images=images,
        top1=right / images,
        interval=wilson_interval(right, images),
        top5=int((ranks < 5).sum()) / images if len(classes) > 5 else None,
        loss=functional.cross_entropy(logits, labels, reduction="none").double().mean().item(),
        usual=int(labels.bincount().max()) / images,
        classes=_by_class(pairs, classes),
        pairs=pairs,
    )


def label_ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes are preferred to the right one (N,): those of greater logit, and equals that come before it."""
    own = logits.gather(1, labels[:, None])  # (N, 1)
    before = torch.arange(logits.shape[1]) < labels[:, None]  # (N, K)
    return ((logits > own) | ((logits == own) & before)).sum(dim=1)  # (N,)


def wilson_interval(right: int, images: int) -> Interval:
    """Wilson's interval, which holds for shares near 0 and 1 and for few images too."""
    share = right / images
    middle = share + Z * Z / (2 * images)
    reach = Z * sqrt(share * (1 - share) / images + Z * Z / (4 * images * images))
    scale = 1 + Z * Z / images
    return Interval(low=max(0.0, (middle - reach) / scale), high=min(1.0, (middle + reach) / scale))


def _pairs(labels: NDArray[np.int64], given: NDArray[np.int64], classes: int) -> tuple[ConfusionCount, ...]:
    codes, counts = np.unique(labels * classes + given, return_counts=True)
    return tuple(
        ConfusionCount(label=code // classes, answer=code % classes, images=count)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    )


def _by_class(pairs: Sequence[ConfusionCount], names: Sequence[str]) -> tuple[ClassAccuracy, ...]:
    images, given, right, times = ([0] * len(names) for _ in range(4))
    taken_for = [""] * len(names)
    for pair in pairs:
        images[pair.label] += pair.images
        given[pair.answer] += pair.images
        if pair.label == pair.answer:
            right[pair.label] = pair.images
        elif pair.images > times[pair.label]:
            times[pair.label], taken_for[pair.label] = pair.images, names[pair.answer]
    return tuple(
        ClassAccuracy(
            name=name,
            images=images[label],
            right=right[label],
            answers=given[label],
            recall=_share(right[label], images[label]),
            precision=_share(right[label], given[label]),
            f1=_share(2 * right[label], images[label] + given[label]),
            taken_for=taken_for[label],
            times=times[label],
        )
        for label, name in enumerate(names)
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class AccuracyResult(Config):
    """The judgment of the answers."""

    kind: Literal["accuracy"] = "accuracy"
    accuracy: Accuracy
    calibration: Calibration


class AccuracyEvaluator(Config):
    """The answers of the model's own head, by the names of its classes."""

    kind: Literal["accuracy"] = "accuracy"

    def check(self, subject: SubjectModel) -> None:
        subject.need_classes(self.kind)

    def judge(self, subject: SubjectModel) -> AccuracyResult:
        answers = subject.answers(subject.trained)
        return AccuracyResult(accuracy=compute_accuracy(answers, subject.bundle.classes), calibration=compute_calibration(answers))
