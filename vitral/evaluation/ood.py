"""Out-of-distribution scores: does the model tell images unlike its data?  N images, D width, K classes, T training.

Scores are higher for images like the training images. Those of features are fitted on training images alone; the other
images are only scored.

    confidence     the probability of the predicted class (arXiv 1610.02136)
    energy         logsumexp of the logits (arXiv 2010.03759); of sigmoid, the sum of log(1 + exp(z)) (2109.14162)
    mahalanobis    distance to the nearest class mean, with one covariance for all classes (arXiv 1807.03888)
    knn            distance to the k-th nearest training image, of normalized features (arXiv 2204.06507)
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from vitral.core.activation import probabilities
from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.data.samples import Samples
from vitral.evaluation.subject import LabeledFeatures, SubjectModel
from vitral.models.head import NoHead
from vitral.models.hooks import eval_mode

CHUNK = 1024  # images at a time
TPR = 0.95
Scores = NDArray[np.float64]


class OodScore(Config):
    """How well a score separates the images of the data (positive) from the others."""

    name: str
    auroc: float  # the probability that an image of the data scores higher than another; equal scores count half
    fpr95: float  # the share of the others that pass where 95% of the data do


class OodResult(Config):
    """The separation of the data from other images, by score."""

    kind: Literal["ood"] = "ood"
    data: str  # the other images
    images: int  # of the split evaluated
    ood_images: int
    train_images: int
    k: int  # of knn
    rank: int  # of the covariance; below the width, directions without variance are left out
    width: int
    scores: tuple[OodScore, ...]


class OodEvaluator(Config):
    """Scores the split evaluated and other images, from `--ood-data`."""

    kind: Literal["ood"] = "ood"
    k: int = Field(default=50, ge=1)  # neighbor whose distance counts; at most the number of training images

    def check(self, subject: SubjectModel) -> None:
        subject.check_training_images(self.kind)
        if subject.context.ood_data is None:
            message, hint = "ood compares with other images", "name them: --ood-data FOLDER"
            raise ConfigError(message, code="config.missing_value", where="--ood-data", hint=hint)

    def evaluate(self, subject: SubjectModel) -> OodResult:
        given = subject.context.ood_data
        assert given is not None
        train, own = subject.features("train"), subject.features(subject.split).values  # (N, D)
        others = replace(subject, samples=all_of_test(given), split="test").features("test").values
        covariance = SharedCovariance(train)
        k = min(self.k, len(train.values))
        pairs = {name: (score(subject, own), score(subject, others)) for name, score in HEAD_SCORES.items()}
        if isinstance(subject.bundle.model.head, NoHead):
            pairs = {}
        pairs["mahalanobis"] = (covariance.scores(own), covariance.scores(others))
        pairs["knn"] = (knn_scores(train.values, own, k), knn_scores(train.values, others, k))
        return OodResult(
            data=given.where,
            images=len(own),
            ood_images=len(others),
            train_images=len(train.values),
            k=k,
            rank=covariance.rank,
            width=own.shape[1],
            scores=tuple(
                OodScore(name=name, auroc=auroc(inside, outside), fpr95=fpr_at(inside, outside))
                for name, (inside, outside) in pairs.items()
            ),
        )


def all_of_test(samples: Samples) -> Samples:
    """The samples with all images in the split test."""
    return replace(samples, items=tuple(item._replace(split="test") for item in samples.items))


def _logits(subject: SubjectModel, features: Tensor) -> Tensor:
    """The logits (N, K) of pooled features."""
    head = subject.model.head
    with torch.no_grad(), eval_mode(subject.model):
        chunks = [head(rows.to(subject.context.device)).cpu() for rows in features.split(CHUNK)]
    return torch.cat(chunks).double()


def confidence_scores(subject: SubjectModel, features: Tensor) -> Scores:
    """The probability of the predicted class (N,)."""
    return _numbers(probabilities(_logits(subject, features), subject.bundle.activation).amax(dim=1))


def energy_scores(subject: SubjectModel, features: Tensor) -> Scores:
    """The negative energy (N,) of the logits as trained, before a temperature."""
    logits = _logits(subject, features) * getattr(subject.bundle.model.head, "temperature", 1.0)
    if subject.bundle.activation == "sigmoid":
        return _numbers(functional.softplus(logits).sum(dim=1))
    return _numbers(logits.logsumexp(dim=1))


HEAD_SCORES = {"confidence": confidence_scores, "energy": energy_scores}


class SharedCovariance:
    """Class means, and the inverse square root of their common covariance, in float64."""

    def __init__(self, train: LabeledFeatures) -> None:
        values = train.values.double()  # (T, D)
        labels, numbers = train.labels.unique(return_inverse=True)
        counts = numbers.bincount(minlength=len(labels))[:, None]  # (K, 1)
        self.means = torch.zeros(len(labels), values.shape[1], dtype=torch.float64).index_add_(0, numbers, values)
        self.means /= counts
        rest = values - self.means[numbers]
        variances, axes = torch.linalg.eigh(rest.mT @ rest / len(values))
        kept = variances > variances.max() * len(variances) * torch.finfo(torch.float64).eps
        self.rank = int(kept.sum())
        self.whiten = axes[:, kept] / variances[kept].sqrt()  # (D, rank)

    def scores(self, features: Tensor) -> Scores:
        """The negative squared distance (N,) to the nearest mean."""
        centers = self.means @ self.whiten  # (K, rank)
        rows = (chunk.double() @ self.whiten for chunk in features.split(CHUNK))
        mode = "donot_use_mm_for_euclid_dist"
        nearest = [torch.cdist(row, centers, compute_mode=mode).amin(dim=1).square() for row in rows]
        return -_numbers(torch.cat(nearest))


def knn_scores(train: Tensor, features: Tensor, k: int) -> Scores:
    """The negative distance (N,) to the k-th nearest of the training features, all normalized."""
    known = functional.normalize(train.double(), dim=1)  # (T, D)
    found = []
    for chunk in features.split(CHUNK):
        similarity = functional.normalize(chunk.double(), dim=1) @ known.mT  # (rows, T)
        nearest = similarity.topk(k, dim=1).values[:, -1]
        found.append((2 - 2 * nearest).clamp(min=0).sqrt())
    return -_numbers(torch.cat(found))


def _numbers(values: Tensor) -> Scores:
    return values.numpy()


def auroc(inside: Scores, outside: Scores) -> float:
    """The area under the ROC curve, by ranks; equal scores count half."""
    ordered = np.sort(outside)
    below, upto = (np.searchsorted(ordered, inside, side=side) for side in ("left", "right"))
    return float(((below + upto) / 2).sum() / (len(inside) * len(outside)))


def fpr_at(inside: Scores, outside: Scores, tpr: float = TPR) -> float:
    """The share of `outside` at or above the highest threshold that a share `tpr` of `inside` reaches."""
    threshold = np.sort(inside)[::-1][int(np.ceil(tpr * len(inside) - 1e-9)) - 1]
    return float((outside >= threshold).mean())
