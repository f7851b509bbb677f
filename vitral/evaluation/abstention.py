"""Abstention: what a model gains by answering only where it is confident.  N images."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.subject import Predictions, SubjectModel, check_finite

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
TARGETS = (0.8, 0.9, 0.95, 0.99)  # accuracies


class CoveragePoint(Config):
    """Answers at or above a threshold of confidence."""

    threshold: float
    coverage: float  # the share of images that are answered; more than asked for where confidences are equal
    accuracy: float  # of the answers
    ci95: Interval  # of the accuracy


class TargetThreshold(Config):
    """The lowest threshold at which the answers have a wanted accuracy, and what it gives."""

    accuracy: float  # wanted
    threshold: float | None  # null if no threshold has it
    answered: CoveragePoint | None  # on the images evaluated; null if none is answered


class AbstentionResult(Config):
    """The trade of coverage for accuracy; a risk is a share of wrong answers."""

    kind: Literal["abstention"] = "abstention"
    images: int
    accuracy: float  # without abstention
    aurc: float  # area under the risk-coverage curve: the mean risk over all coverages
    excess_aurc: float  # above that of a model with the same answers that is less sure of each wrong one
    points: tuple[CoveragePoint, ...]
    targets: tuple[TargetThreshold, ...]
    chosen_on: str  # the split that the thresholds of the targets are from
    chosen_images: int
    chosen_apart: bool  # whether those are other images than the evaluated ones


class AbstentionEvaluator(Config):
    """Evaluates the answers of the model's own head by their confidence."""

    kind: Literal["abstention"] = "abstention"

    def check(self, subject: SubjectModel) -> None:
        subject.check_classes(self.kind)

    def evaluate(self, subject: SubjectModel) -> AbstentionResult:
        """Thresholds are chosen on val, if it is there besides the split evaluated, else on that split."""
        own = sort_answers(subject.predictions(subject.train_size))
        other = subject.split != "val" and bool(subject.samples.of("val"))
        chosen = sort_answers(subject.predictions(subject.train_size, "val")) if other else own
        aurc = area_under_risk(own)
        right, images = int(own.correct.sum()), len(own.correct)
        return AbstentionResult(
            images=images,
            accuracy=right / images,
            aurc=aurc,
            excess_aurc=aurc - least_area(right, images),
            points=tuple(dict.fromkeys(point_at_coverage(own, coverage) for coverage in COVERAGES)),
            targets=tuple(_target(accuracy, chosen, own) for accuracy in TARGETS),
            chosen_on="val" if other else subject.split,
            chosen_images=len(chosen.correct),
            chosen_apart=other,
        )


class Answers(NamedTuple):
    """Answers from the most to the least confident."""

    confidence: NDArray[np.float64]  # (N,)
    correct: NDArray[np.bool_]  # (N,)


def sort_answers(predictions: Predictions) -> Answers:
    """The answers by their confidence."""
    check_finite(predictions.logits, "logits")
    confidence = predictions.confidence.numpy()
    order = np.argsort(-confidence, kind="stable")
    return Answers(confidence[order], (predictions.predicted == predictions.labels).numpy()[order])


def _group_ends(answers: Answers) -> NDArray[np.int64]:
    """How many answers there are at or above each distinct confidence, from the highest on."""
    return np.flatnonzero(np.diff(answers.confidence, append=-np.inf)) + 1


def area_under_risk(answers: Answers) -> float:
    """The mean over n of the risk of the n most confident answers; of equally confident ones, any order on average."""
    ends = np.concatenate([[0], _group_ends(answers)])
    wrong = np.concatenate([[0], np.cumsum(~answers.correct)])[ends]
    counts = np.arange(1, len(answers.correct) + 1)
    return float((np.interp(counts, ends, wrong) / counts).mean())


def least_area(right: int, images: int) -> float:
    """The area if all wrong answers were the least confident."""
    counts = np.arange(1, images + 1)
    return float((np.maximum(0, counts - right) / counts).mean())


def _point(answers: Answers, threshold: float) -> CoveragePoint | None:
    answered = int((answers.confidence >= threshold).sum())
    if not answered:
        return None
    right = int(answers.correct[:answered].sum())
    return CoveragePoint(
        threshold=threshold,
        coverage=answered / len(answers.correct),
        accuracy=right / answered,
        ci95=wilson_interval(right, answered),
    )


def point_at_coverage(answers: Answers, coverage: float) -> CoveragePoint:
    """The highest threshold that answers at least this share of the images."""
    count = max(1, int(np.ceil(coverage * len(answers.correct) - 1e-9)))
    point = _point(answers, float(answers.confidence[count - 1]))
    assert point is not None
    return point


def choose_threshold(answers: Answers, accuracy: float) -> float | None:
    """The lowest threshold whose answers have the accuracy with 95% confidence: at the lower end of the interval."""
    ends = _group_ends(answers)
    right = np.cumsum(answers.correct)[ends - 1]
    sure = [
        end
        for end, hits in zip(ends.tolist(), right.tolist(), strict=True)
        if wilson_interval(hits, end).low >= accuracy
    ]
    return float(answers.confidence[sure[-1] - 1]) if sure else None


def _target(accuracy: float, chosen: Answers, own: Answers) -> TargetThreshold:
    threshold = choose_threshold(chosen, accuracy)
    answered = None if threshold is None else _point(own, threshold)
    return TargetThreshold(accuracy=accuracy, threshold=threshold, answered=answered)
