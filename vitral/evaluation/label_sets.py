"""Accuracy on images that have several right labels, such as ReaL's.  N images, K classes."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.subject import SubjectModel, check_finite, match_labels


class LabelSetsResult(Config):
    """A prediction is right if it is one of the labels of its image."""

    kind: Literal["label_sets"] = "label_sets"
    images: int
    top1: float
    ci95: Interval  # of top1
    top5: float | None  # one of the five most likely classes is right; null for 5 classes or fewer
    mean_labels: float  # of an image
    single_label: int  # images with one label
    single_label_top1: float | None  # of those


class LabelSetsEvaluator(Config):
    """Evaluates the predictions of the model's own head against sets of labels."""

    kind: Literal["label_sets"] = "label_sets"

    def check(self, subject: SubjectModel) -> None:
        subject.check_classes(self.kind)
        if not subject.samples.label_sets:
            message = f"the images of {subject.samples.where} have one label each"
            hint = "use --with accuracy, or data with several labels: imagenet-real, objectnet"
            raise ConfigError(message, code="config.unsupported", where=f"--with {self.kind}", hint=hint)

    def evaluate(self, subject: SubjectModel) -> LabelSetsResult:
        predictions = subject.predictions(subject.train_size)
        check_finite(predictions.logits, "logits")
        own = match_labels(subject.samples, subject.bundle).tolist()
        items = subject.samples.of(subject.split)
        sets = [[own[label] for label in subject.samples.label_sets[item.name]] for item in items]
        return compute_label_sets(predictions.logits, sets)


def compute_label_sets(logits: Tensor, sets: Sequence[Sequence[int]]) -> LabelSetsResult:
    """The accuracy of logits (N, K), of equal ones the first, where any label of an image's set is right."""
    ranked = torch.from_numpy((-logits.numpy()).argsort(axis=1, kind="stable")[:, :5].copy())  # (N, 5)
    right = [[label in labels for label in row] for row, labels in zip(ranked.tolist(), sets, strict=True)]
    first = [row[0] for row in right]
    single = [hit for hit, labels in zip(first, sets, strict=True) if len(labels) == 1]
    return LabelSetsResult(
        images=len(sets),
        top1=sum(first) / len(sets),
        ci95=wilson_interval(sum(first), len(sets)),
        top5=sum(map(any, right)) / len(sets) if logits.shape[1] > 5 else None,
        mean_labels=sum(map(len, sets)) / len(sets),
        single_label=len(single),
        single_label_top1=sum(single) / len(single) if single else None,
    )


def refuse_label_sets(subject: SubjectModel, evaluator: str) -> None:
    """Raise for an evaluator that compares a prediction with one label, if images have several."""
    if subject.samples.label_sets and evaluator != "label_sets":
        message = f"{evaluator} needs one label for each image, but those of {subject.samples.where} have several"
        raise ConfigError(message, code="config.unsupported", where=f"--with {evaluator}", hint="use --with label_sets")
