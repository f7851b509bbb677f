"""Mixing: images of a batch made from two of it, with targets to match.

B images, C channels, H rows, W columns, K classes.

The partner of an image is the one before it in the batch, of the first the last: big_vision and torchvision roll the
batch so too, where timm flips it. One mixture serves the whole batch. Dice are numpy's, so that a batch does not
depend on the device.
"""

from math import sqrt
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot as exact_one_hot

from vitral.core.config import Config
from vitral.data.transforms.image_ops import Edges


class Mixed(NamedTuple):
    """A batch after mixing: images (B, C, H, W) and how much of each class is in them (B, K)."""

    images: Tensor
    targets: Tensor


def one_hot(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Targets of labels: 1 for the class and 0 for others, with a part of it all spread evenly over all classes."""
    return exact_one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes  # (B, K)


def mixup(images: Tensor, targets: Tensor, share: float) -> Mixed:
    """Each image and target times its share, plus its partner's times the rest."""
    return Mixed(_blended(images, share), _blended(targets, share))


def cutmix(images: Tensor, targets: Tensor, box: Edges) -> Mixed:
    """Each image with the box taken from its partner, and targets by the area each has in the result."""
    height, width = images.shape[-2:]
    cut = (..., slice(box.top, box.bottom), slice(box.left, box.right))
    mixed = images.clone()  # (B, C, H, W)
    mixed[cut] = images.roll(1, dims=0)[cut]
    return Mixed(mixed, _blended(targets, 1.0 - box.area / (height * width)))


def cut_box(height: int, width: int, share: float, row: int, column: int) -> Edges:
    """The box about a pixel that leaves the image its share, of the image's own shape; less where edges clip it."""
    rows, columns = int(height * sqrt(1.0 - share)), int(width * sqrt(1.0 - share))
    top, left = row - rows // 2, column - columns // 2
    return Edges(top, top + rows, left, left + columns).within(height, width)


class NoMixing(Config):
    """Every image by itself."""

    kind: Literal["none"] = "none"

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> Mixed:
        """The batch as it is."""
        return Mixed(images, targets)


class Mixup(Config):
    """Two images laid over each other (arXiv 1710.09412), shares from Beta(alpha, alpha).

    The greater share is always the image's own, as in big_vision; timm and torchvision leave it to chance.
    """

    kind: Literal["mixup"] = "mixup"
    alpha: float = Field(default=0.2, gt=0)

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> Mixed:
        """The batch, mixed."""
        share = rng.beta(self.alpha, self.alpha)
        return mixup(images, targets, max(share, 1.0 - share))


class CutMix(Config):
    """A box of one image put into another (arXiv 1905.04899), the area it leaves from Beta(alpha, alpha)."""

    kind: Literal["cutmix"] = "cutmix"
    alpha: float = Field(default=1.0, gt=0)

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> Mixed:
        """The batch, mixed."""
        height, width = images.shape[-2:]
        share = rng.beta(self.alpha, self.alpha)
        box = cut_box(height, width, share, int(rng.integers(height)), int(rng.integers(width)))
        return cutmix(images, targets, box)


class MixupOrCutMix(Config):
    """One or the other for each batch, equally likely, with the alphas of DeiT (arXiv 2012.12877)."""

    kind: Literal["mixup_or_cutmix"] = "mixup_or_cutmix"
    mixup: Mixup = Mixup(alpha=0.8)
    cutmix: CutMix = CutMix(alpha=1.0)

    def apply(self, images: Tensor, targets: Tensor, rng: np.random.Generator) -> Mixed:
        """The batch, mixed."""
        chosen = self.mixup if rng.random() < 0.5 else self.cutmix
        return chosen.apply(images, targets, rng)


def _blended(things: Tensor, share: float) -> Tensor:
    assert things.is_floating_point(), "labels are mixed as one_hot targets, images as floats"
    return things * share + things.roll(1, dims=0) * (1.0 - share)


Mixing = Annotated[NoMixing | Mixup | CutMix | MixupOrCutMix, Field(discriminator="kind")]
