"""Classification and its losses.  B images, K classes."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.data.transforms.mixup import Mixing, NoMixing, one_hot
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model
from vitral.models.head import NoHead
from vitral.models.vit import VisionTransformer, check_patch_drop
from vitral.tasks.task import BaseTask, Outcome, Task, batch_mean


class Softmax(Config):
    """Softmax cross-entropy."""

    kind: Literal["softmax"] = "softmax"
    smoothing: float = Field(default=0.0, ge=0, lt=1)  # label smoothing

    def smooth(self, targets: Tensor) -> Tensor:
        """The smoothed targets."""
        return targets * (1.0 - self.smoothing) + self.smoothing / targets.shape[1]  # (B, K)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image (B,)."""
        return F.cross_entropy(logits, targets, reduction="none")


class Sigmoid(Config):
    """Sigmoid cross-entropy, summed over the classes as in the original and in big_vision.

    Nearly all targets are 0, so the logits should start low: set the model's `head.bias` to -6.9 for the 1,000 classes
    of ImageNet and to -10 for the 21,000 of ImageNet-21k.
    """

    kind: Literal["sigmoid"] = "sigmoid"

    def smooth(self, targets: Tensor) -> Tensor:
        """The targets, unchanged."""
        return targets

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image (B,)."""
        # Not torch's binary cross-entropy, which is off by 1% at a logit of -10, and thousands of them add up.
        return -(targets * F.logsigmoid(logits) + (1.0 - targets) * F.logsigmoid(-logits)).sum(dim=1)


LossConfig = Annotated[Softmax | Sigmoid, OpenUnion()]


class NoPatchDrop(Config):
    """Train on all patches."""

    kind: Literal["none"] = "none"

    def rate(self, done: float) -> float:
        """The fraction of patches to drop after a fraction of the run."""
        return 0.0


class PatchDrop(Config):
    """Drop random patches of each training image, at a rate that falls to `end` (PatchDropout, arXiv 2208.07220).

    A step costs nearly as much less as there are fewer tokens. Evaluation uses all patches, so the last part of the run
    should, too.
    """

    kind: Literal["linear"] = "linear"
    start: float = Field(default=0.5, ge=0, lt=1)
    end: float = Field(default=0.0, ge=0, lt=1)
    until: float = Field(default=0.8, gt=0, le=1)  # fraction of the run at which `end` is reached

    def rate(self, done: float) -> float:
        """The fraction of patches to drop after a fraction of the run."""
        return self.start + (self.end - self.start) * min(1.0, done / self.until)


PatchDropConfig = Annotated[NoPatchDrop | PatchDrop, OpenUnion()]


class Classify(BaseTask):
    """Train the model to classify."""

    kind: Literal["classify"] = "classify"
    loss: LossConfig = Softmax()
    mixing: Mixing = NoMixing()
    patch_drop: PatchDropConfig = NoPatchDrop()
    class_weights: Literal["none", "balanced"] = "none"  # balanced: inverse to the number of images of a class

    def check(self, model: Config) -> None:
        if not isinstance(self.patch_drop, NoPatchDrop):
            check_patch_drop(model, where="patch_drop")

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model whose head has this many classes; `class_counts` are training images."""
        head = model.config.head
        outputs = "none" if isinstance(head, NoHead) else str(head.num_classes)
        if outputs != str(classes):
            message = f"the data has {classes} classes, the head has {outputs}"
            hint = f"build the model with a head of {classes} classes"
            raise ConfigError(message, code="config.class_mismatch", where="head.num_classes", hint=hint)
        self.check(model.config)
        assert len(class_counts) == classes
        weights = balanced_weights(class_counts) if self.class_weights == "balanced" else torch.ones(classes)
        return Classification(self, model, weights)


def balanced_weights(class_counts: Sequence[int]) -> Tensor:
    """A weight for each class (K,), inverse to its number of images; the mean over images is 1."""
    if empty := [str(number) for number, count in enumerate(class_counts) if not count]:
        message = f"there are no training images of class {', '.join(empty)} (counted from 0)"
        hint = "use class_weights=none, or data with images of every class"
        raise ConfigError(message, code="config.empty_class", where="class_weights", hint=hint)
    counts = torch.tensor(class_counts, dtype=torch.float64)
    return (counts.mean() / counts).float()


class Classification(Task):
    """Mixing and smoothing apply in training only; class weights apply in evaluation too.

    A mixed image has the mixed class weight, and its label for accuracy is the class with the larger part.
    """

    weights: Tensor  # (K,)

    def __init__(self, config: Classify, model: Model, weights: Tensor) -> None:
        super().__init__()
        self.config = config
        self.model = model
        device = next(model.parameters()).device
        self.register_buffer("weights", weights.to(device), persistent=False)  # recomputed from the data

    def begin_step(self, done: float) -> None:
        if isinstance(self.model, VisionTransformer):
            self.model.patch_drop_rate = self.config.patch_drop.rate(done)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        loss, targets = self.config.loss, one_hot(labels, len(self.weights))  # (B, K)
        if self.training:
            images, targets = self.config.mixing.apply(images, targets, rng)
        logits = self.model(images).float()  # (B, K), in full precision for the loss
        losses = loss.losses(logits, loss.smooth(targets) if self.training else targets)  # (B,)
        correct = logits.detach().argmax(dim=1) == targets.argmax(dim=1)  # (B,)
        mean_loss = batch_mean(losses * (targets @ self.weights))
        return Outcome(mean_loss, len(images), {"accuracy": batch_mean(correct.float())})
