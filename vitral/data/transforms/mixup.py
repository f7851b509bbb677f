"""Mixup and CutMix: mix each image of a batch, and its target, with another.

An image is mixed with the one before it in the batch, the first with the last: big_vision and torchvision roll the
batch as well, timm flips it. One mixture is drawn for the whole batch, by NumPy, so that it does not depend on the
device.  B images, C channels, H rows, W columns, K classes.
"""

from math import sqrt
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot as exact_one_hot

from vitral.core.config import Config, OpenUnion
from vitral.data.transforms.crop import Box


class MixedBatch(NamedTuple):
    """Images (B, C, H, W) after mixing, and their soft targets (B, K)."""

    images: Tensor
    targets: Tensor


def one_hot(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """One-hot targets with label smoothing."""
    return exact_one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes  # (B, K)


def mixup(images: Tensor, targets: Tensor, lam: float) -> MixedBatch:
    """lam * x + (1 - lam) * x of the image before, for images and targets."""
    return MixedBatch(_mix(images, lam), _mix(targets, lam))


def cutmix(images: Tensor, targets: Tensor, box: Box) -> MixedBatch:
    """Each image with the box replaced by that of the image before, and targets by area."""
    height, width = images.shape[-2:]
    cut = (..., *box.slices)
    mixed = images.clone()  # (B, C, H, W)
    mixed[cut] = images.roll(1, dims=0)[cut]
    return MixedBatch(mixed, _mix(targets, 1.0 - box.height * box.width / (height * width)))


def cut_box(height: int, width: int, lam: float, row: int, column: int) -> Box:
    """The box of area 1 - lam around a pixel, of the image's aspect ratio, clipped to the image."""
    rows, columns = int(height * sqrt(1.0 - lam)), int(width * sqrt(1.0 - lam))
    return Box(row - rows // 2, column - columns // 2, rows, columns).clip(height, width)


class NoMixing(Config):
    """No mixing."""

    kind: Literal["none"] = "none"

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> MixedBatch:
        """The batch unchanged."""
        return MixedBatch(images, targets)


class Mixup(Config):
    """Blend two images (arXiv 1710.09412), lam from Beta(alpha, alpha).

    The image itself always gets the larger weight, as in big_vision; in timm and torchvision either may.
    """

    kind: Literal["mixup"] = "mixup"
    alpha: float = Field(default=0.2, gt=0)

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> MixedBatch:
        """The batch, mixed."""
        lam = rng.beta(self.alpha, self.alpha)
        return mixup(images, targets, max(lam, 1.0 - lam))


class CutMix(Config):
    """Paste a box of one image into another (arXiv 1905.04899), lam from Beta(alpha, alpha)."""

    kind: Literal["cutmix"] = "cutmix"
    alpha: float = Field(default=1.0, gt=0)

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> MixedBatch:
        """The batch, mixed."""
        height, width = images.shape[-2:]
        lam = rng.beta(self.alpha, self.alpha)
        box = cut_box(height, width, lam, int(rng.integers(height)), int(rng.integers(width)))
        return cutmix(images, targets, box)


class MixupOrCutMix(Config):
    """Mixup or CutMix for each batch, equally likely, with the alphas of DeiT (arXiv 2012.12877)."""

    kind: Literal["mixup_or_cutmix"] = "mixup_or_cutmix"
    mixup: Mixup = Mixup(alpha=0.8)
    cutmix: CutMix = CutMix(alpha=1.0)

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> MixedBatch:
        """The batch, mixed."""
        chosen = self.mixup if rng.random() < 0.5 else self.cutmix
        return chosen.apply(images, targets, rng)


def _mix(values: Tensor, lam: float) -> Tensor:
    assert values.is_floating_point(), "labels are mixed as one_hot targets, images as floats"
    return values * lam + values.roll(1, dims=0) * (1.0 - lam)


Mixing = Annotated[NoMixing | Mixup | CutMix | MixupOrCutMix, OpenUnion()]
