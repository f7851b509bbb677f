"""Classification: which class an image is of.  B images, K classes.

What a wrong answer costs.  B images, K classes.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.data.transforms.mixup import Mixing, NoMixing, one_hot
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model
from vitral.models.head import NoHead
from vitral.tasks.task import Outcome, Task, batch_mean


class Softmax(Config):
    """Cross-entropy of one choice among the classes."""

    kind: Literal["softmax"] = "softmax"
    smoothing: float = Field(default=0.0, ge=0, lt=1)  # how much of a target is spread evenly over all classes

    def smooth(self, targets: Tensor) -> Tensor:
        """The targets to train on."""
        return targets * (1.0 - self.smoothing) + self.smoothing / targets.shape[1]  # (B, K)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cost of each image (B,)."""
        return F.cross_entropy(logits, targets, reduction="none")


class Sigmoid(Config):
    """Binary cross-entropy of each class by itself, summed over the classes as in the original and in big_vision.

    Nearly every target is 0, so the logits should start low: `head.bias` of the model is -6.9 for the 1,000 classes of
    ImageNet and -10 for the 21,000.
    """

    kind: Literal["sigmoid"] = "sigmoid"

    def smooth(self, targets: Tensor) -> Tensor:
        """The targets to train on, which are the targets."""
        return targets

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cost of each image (B,)."""
        # Not torch's binary cross-entropy, which is wrong by 1 % at a logit of -10, where thousands add up.
        return -(targets * F.logsigmoid(logits) + (1.0 - targets) * F.logsigmoid(-logits)).sum(dim=1)


LossConfig = Annotated[Softmax | Sigmoid, Field(discriminator="kind")]


class Classify(Config):
    """Train the model's head to name the class."""

    labeled: ClassVar[bool] = True  # whether the images must have labels

    kind: Literal["classify"] = "classify"
    loss: LossConfig = Softmax()
    mixing: Mixing = NoMixing()
    class_weights: Literal["none", "balanced"] = (
        "none"  # balanced: a class counts as much as any other, however few it has
    )

    def build(self, model: Model, classes: int, class_counts: Sequence[int], scaling: Normalize) -> Task:
        """The task for a model with a head of so many classes; counts are the training images of each class."""
        head = model.config.head
        found = "none" if isinstance(head, NoHead) else str(head.num_classes)
        if found != str(classes):
            raise ConfigError(
                f"the data has {classes} classes, the head has {found}",
                code="config.class_mismatch",
                where="head.num_classes",
                hint=f"build the model with a head of {classes} classes",
            )
        assert len(class_counts) == classes
        weights = balanced_weights(class_counts) if self.class_weights == "balanced" else torch.ones(classes)
        return Classification(self, model, weights)


def balanced_weights(class_counts: Sequence[int]) -> Tensor:
    """A weight for each class (K,), inverse to its images, which over all of those images has mean 1."""
    if empty := [str(number) for number, count in enumerate(class_counts) if not count]:
        raise ConfigError(
            f"there are no training images of class {', '.join(empty)} (counted from 0)",
            code="config.empty_class",
            where="weights",
            hint="use weights=none, or data with images of every class",
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

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        loss, targets = self.config.loss, one_hot(labels, len(self.weights))  # (B, K)
        if self.training:
            images, targets = self.config.mixing.apply(images, targets, rng)
        logits = self.model(images).float()  # (B, K), of full precision for the sake of the logarithms
        losses = loss.losses(logits, loss.smooth(targets) if self.training else targets)  # (B,)
        right = logits.detach().argmax(dim=1) == targets.argmax(dim=1)  # (B,)
        return Outcome(
            batch_mean(losses * (targets @ self.weights)), len(images), {"accuracy": batch_mean(right.float())}
        )
