"""Classification: which class an image is of.  B images, K classes."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitral.config import Config
from vitral.data.transforms.mix import Mixing, NoMixing, one_hot
from vitral.data.transforms.scaling import Scaling
from vitral.errors import ConfigError
from vitral.model.contract import Model
from vitral.model.head import NoHead
from vitral.tasks.loss import LossConfig, Softmax
from vitral.tasks.task import Outcome, Task, mean_of


class Classify(Config):
    """Train the model's head to name the class."""

    labelled: ClassVar[bool] = True  # whether the images must have labels

    kind: Literal["classify"] = "classify"
    loss: LossConfig = Softmax()
    mixing: Mixing = NoMixing()
    weights: Literal["none", "balanced"] = "none"  # balanced: a class counts as much as any other, however few it has

    def build(self, model: Model, classes: int, class_counts: Sequence[int], scaling: Scaling) -> Task:
        """The task for a model with a head of so many classes; counts are the training images of each class."""
        head = model.config.head
        found = "none" if isinstance(head, NoHead) else str(head.classes)
        if found != str(classes):
            raise ConfigError(
                f"the data has {classes} classes, the head has {found}",
                code="config.class_mismatch",
                where="head.classes",
                remedy=f"build the model with a head of {classes} classes",
            )
        assert len(class_counts) == classes
        weights = balanced(class_counts) if self.weights == "balanced" else torch.ones(classes)
        return Classification(self, model, weights)


def balanced(class_counts: Sequence[int]) -> Tensor:
    """A weight for each class (K,), inverse to its images, which over all of those images has mean 1."""
    if empty := [str(number) for number, count in enumerate(class_counts) if not count]:
        raise ConfigError(
            f"there are no training images of class {', '.join(empty)} (counted from 0)",
            code="config.empty_class",
            where="weights",
            remedy="use weights=none, or data with images of every class",
        )
    counts = torch.tensor(class_counts, dtype=torch.float64)
    return (counts.mean() / counts).float()


class Classification(Task):
    """Mixing and smoothing act in training alone: in evaluation the loss is that of plain images and plain labels.

    Class weights count in both. A mixed image weighs as much as what is mixed in it, and is rightly answered by the
    class that has the greater part of it.
    """

    weights: Tensor  # (K,)

    def __init__(self, config: Classify, model: Model, weights: Tensor) -> None:
        super().__init__()
        self.config = config
        self.model = model
        place = next(model.parameters()).device
        self.register_buffer("weights", weights.to(place), persistent=False)  # they follow from the data

    def forward(self, images: Tensor, labels: Tensor, dice: np.random.Generator) -> Outcome:
        loss, targets = self.config.loss, one_hot(labels, len(self.weights))  # (B, K)
        if self.training:
            images, targets = self.config.mixing.apply(images, targets, dice)
        logits = self.model(images).float()  # (B, K), of full precision for the sake of the logarithms
        losses = loss.losses(logits, loss.soften(targets) if self.training else targets)  # (B,)
        right = logits.detach().argmax(dim=1) == targets.argmax(dim=1)  # (B,)
        return Outcome(mean_of(losses * (targets @ self.weights)), len(images), {"accuracy": mean_of(right.float())})
