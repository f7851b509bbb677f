"""What is to be told of a corrupted patch (appendix B.1.2).

B images, M corrupted patches, C channels, P x Q pixels a patch, S places of a downsized patch, K colours.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.config import Config, Size
from vitral.data.transforms.scaling import Scaling
from vitral.errors import ConfigError

LEVELS = 8  # of a channel: 3 bits
MOST_CHANNELS = 4  # their colours are 4,096


class Judged(NamedTuple):
    """How well each image's patches were told."""

    losses: Tensor  # (B,)
    metrics: dict[str, Tensor]  # each (B,), detached


def colour_classes(pixels: Tensor, side: int) -> Tensor:
    """The colours of patches (B, M, C, P, Q) of bytes, downsized to side x side by means, as numbers (B, M, S).

    Each mean keeps its three highest bits. The first channel counts most: red 7, green 0, blue 1 is 7 * 64 + 0 * 8 + 1.
    """
    means = F.adaptive_avg_pool2d(pixels.flatten(0, 1), side)  # (B M, C, side, side)
    levels = (means / (256 // LEVELS)).long().flatten(2)  # (B M, C, S), each from 0 to 7
    colours = levels[:, 0]
    for channel in range(1, levels.shape[1]):
        colours = colours * LEVELS + levels[:, channel]
    return colours.unflatten(0, pixels.shape[:2])  # (B, M, S)


class Colours(Config):
    """A colour of 3 bits a channel, 512 in all for red, green and blue, at each place of the downsized patch."""

    side: ClassVar[int]  # of the downsized patch

    def check(self, channels: int, patch: Size) -> None:
        """Refuse patches that have no such colours."""
        if channels > MOST_CHANNELS:
            raise ConfigError(
                f"{channels} channels of 3 bits are too many colours to choose from",
                code="config.unsupported",
                where="target",
                remedy=f"use target=whole_patch, or at most {MOST_CHANNELS} channels",
            )
        if min(patch) < self.side:
            raise ConfigError(
                f"a patch of {patch} pixels cannot be downsized to {self.side}x{self.side}",
                code="config.unsupported",
                where="target",
                remedy="use target=mean_colour, or larger patches",
            )

    def outputs(self, channels: int, patch: Size) -> int:
        """How many numbers tell one patch."""
        return self.side**2 * LEVELS**channels

    def judge(self, predictions: Tensor, patches: Tensor, scaling: Scaling) -> Judged:
        """Cross-entropy and accuracy of predictions (B, M, S K) for scaled patches (B, M, C, P, Q)."""
        colours = colour_classes(scaling.restore(patches), self.side)  # (B, M, S)
        scores = predictions.unflatten(2, (self.side**2, LEVELS ** patches.shape[2]))  # (B, M, S, K)
        losses = F.cross_entropy(scores.flatten(0, 2), colours.flatten(), reduction="none")  # (B M S)
        right = (scores.detach().argmax(dim=3) == colours).float()  # (B, M, S)
        return Judged(losses.view_as(right).mean(dim=(1, 2)), {"accuracy": right.mean(dim=(1, 2))})


class MeanColour(Colours):
    """The mean colour of the patch: the paper's choice."""

    kind: Literal["mean_colour"] = "mean_colour"
    side: ClassVar[int] = 1


class Downsized(Colours):
    """The patch downsized to 4 x 4, each of its 16 colours told by itself."""

    kind: Literal["downsized"] = "downsized"
    side: ClassVar[int] = 4


class WholePatch(Config):
    """Every pixel of the patch as the model sees it, scaled, by mean squared error: slightly worse in the paper."""

    kind: Literal["whole_patch"] = "whole_patch"

    def check(self, channels: int, patch: Size) -> None:
        """Any patch will do."""

    def outputs(self, channels: int, patch: Size) -> int:
        """How many numbers tell one patch."""
        return channels * patch.height * patch.width

    def judge(self, predictions: Tensor, patches: Tensor, scaling: Scaling) -> Judged:
        """The error of predictions (B, M, C P Q) for scaled patches (B, M, C, P, Q)."""
        errors = (predictions - patches.flatten(2)).square()  # (B, M, C P Q)
        return Judged(errors.mean(dim=(1, 2)), {})


TargetConfig = Annotated[MeanColour | Downsized | WholePatch, Field(discriminator="kind")]
