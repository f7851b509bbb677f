"""What a wrong answer costs.  B images, K classes.

Targets (B, K) say how much of each class is in an image, so that mixed images need no loss of their own.
"""

from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.config import Config


class Softmax(Config):
    """Cross-entropy of one choice among the classes."""

    kind: Literal["softmax"] = "softmax"
    smoothing: float = Field(default=0.0, ge=0, lt=1)  # how much of a target is spread evenly over all classes

    def soften(self, targets: Tensor) -> Tensor:
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

    def soften(self, targets: Tensor) -> Tensor:
        """The targets to train on, which are the targets."""
        return targets

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cost of each image (B,)."""
        # Not torch's binary cross-entropy, which is wrong by 1 % at a logit of -10, where thousands add up.
        return -(targets * F.logsigmoid(logits) + (1.0 - targets) * F.logsigmoid(-logits)).sum(dim=1)


LossConfig = Annotated[Softmax | Sigmoid, Field(discriminator="kind")]
