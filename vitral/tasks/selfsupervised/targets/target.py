"""The interface of targets.  B images, C channels, N patches of P x Q pixels, O outputs for a patch."""

import numpy as np
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.vit import VisionTransformer, Vit


class Target(nn.Module):
    """What is to be predicted of every patch, and the loss that belongs to it. It is part of the task's state."""

    outputs: int  # O
    fit_images: int = 0  # training images that `fit` needs

    def forward(self, images: Tensor) -> Tensor:
        """The targets (B, N, ...) of normalized images (B, C, H, W), none of which is hidden."""
        raise NotImplementedError

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each patch (B, N) for outputs (B, N, O)."""
        raise NotImplementedError

    def fit(self, images: Tensor, rng: np.random.Generator) -> None:
        """Compute from normalized training images, before the first step, what the targets are made of."""

    def follow(self, model: VisionTransformer, done: float) -> None:
        """Called after each step with the student and the fraction of the run that was done."""

    def draw(self, outputs: Tensor, pixels: Tensor) -> Tensor | None:
        """The pixels (B, N, C P Q) that outputs stand for; of the image there are such. None for other targets."""
        return None


class BaseTarget(Config):
    """A kind of target."""

    def check(self, model: Vit) -> None:
        """Raise ConfigError if patches of this model have no such target."""

    def build(self, model: VisionTransformer, normalize: Normalize) -> Target:
        """The target for a model, which takes images that are normalized so."""
        raise NotImplementedError


def patch_values(model: Vit) -> int:
    """The number of values in a patch, C P Q."""
    patch = model.token_size()
    return model.channels * patch.height * patch.width
