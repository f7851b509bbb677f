"""Masked patches: the paper's self-supervision (appendix B.1.2), which needs no labels.

B images, C channels, N patches, M of them corrupted, P x Q pixels a patch, D width.

Which patches of an image a model must guess, and what stands in their place (appendix B.1.2).
What is to be told of a corrupted patch (appendix B.1.2).
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Grid, Model, split_tokens
from vitral.models.embed import Patches, cut_patches
from vitral.models.vit import VisionTransformer
from vitral.tasks.task import Outcome, Task, batch_mean

CORRUPTED = 0.5  # of the patches
MASKED, SWAPPED = 0.8, 0.1  # of those; what is left is kept as it is, yet must be told like the others


class Corruption(NamedTuple):
    """What is done to the patches of a batch."""

    indices: Tensor  # (B, M), the corrupted patches, each once
    sources: Tensor  # (B, N), whose embedding stands at each patch: its own, or another's of the same image
    masked: Tensor  # (B, N), whether the mask token stands there instead


def draw_corruption(images: int, patches: int, rng: np.random.Generator) -> Corruption:
    """For each image a draw of its own: always as many corrupted patches, each masked, swapped or kept by chance."""
    count = ceil(CORRUPTED * patches)
    own = np.tile(np.arange(patches), (images, 1))  # (B, N)
    places = rng.permuted(own, axis=1)[:, :count]  # (B, M)
    chance = rng.random((images, count))
    others = (places + rng.integers(1, patches, (images, count))) % patches  # (B, M), never the patch itself
    swapped = (chance >= MASKED) & (chance < MASKED + SWAPPED)
    sources, masked = own.copy(), np.zeros((images, patches), dtype=bool)
    np.put_along_axis(sources, places, np.where(swapped, others, places), axis=1)
    np.put_along_axis(masked, places, chance < MASKED, axis=1)
    return Corruption(torch.from_numpy(places), torch.from_numpy(sources), torch.from_numpy(masked))


def gather_patches(patches: Tensor, places: Tensor) -> Tensor:
    """The patches (B, N, D) at these places (B, M), in their order: (B, M, D)."""
    return patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2]))


def corrupt(patches: Tensor, corruption: Corruption, mask: Tensor) -> Tensor:
    """The embedded patches (B, N, D) with others or the mask token (D,) in the place of some."""
    return torch.where(
        corruption.masked[..., None], mask.to(patches.dtype), gather_patches(patches, corruption.sources)
    )


LEVELS = 8  # of a channel: 3 bits
MAX_CHANNELS = 4  # their colors are 4,096


class TargetLoss(NamedTuple):
    """How well each image's patches were told."""

    losses: Tensor  # (B,)
    metrics: dict[str, Tensor]  # each (B,), detached


def color_classes(pixels: Tensor, side: int) -> Tensor:
    """The colors of patches (B, M, C, P, Q) of bytes, downsized to side x side by means, as numbers (B, M, S).

    Each mean keeps its three highest bits. The first channel counts most: red 7, green 0, blue 1 is 7 * 64 + 0 * 8 + 1.
    """
    means = F.adaptive_avg_pool2d(pixels.flatten(0, 1), side)  # (B M, C, side, side)
    levels = (means / (256 // LEVELS)).long().flatten(2)  # (B M, C, S), each from 0 to 7
    colors = levels[:, 0]
    for channel in range(1, levels.shape[1]):
        colors = colors * LEVELS + levels[:, channel]
    return colors.unflatten(0, pixels.shape[:2])  # (B, M, S)


class Colors(Config):
    """A color of 3 bits a channel, 512 in all for red, green and blue, at each place of the downsized patch."""

    side: ClassVar[int]  # of the downsized patch

    def check(self, channels: int, patch: Size) -> None:
        """Refuse patches that have no such colors."""
        if channels > MAX_CHANNELS:
            raise ConfigError(
                f"{channels} channels of 3 bits are too many colors to choose from",
                code="config.unsupported",
                where="target",
                hint=f"use target=whole_patch, or at most {MAX_CHANNELS} channels",
            )
        if min(patch) < self.side:
            raise ConfigError(
                f"a patch of {patch} pixels cannot be downsized to {self.side}x{self.side}",
                code="config.unsupported",
                where="target",
                hint="use target=mean_color, or larger patches",
            )

    def out_features(self, channels: int, patch: Size) -> int:
        """How many numbers tell one patch."""
        return self.side**2 * LEVELS**channels

    def compute_loss(self, predictions: Tensor, patches: Tensor, scaling: Normalize) -> TargetLoss:
        """Cross-entropy and accuracy of predictions (B, M, S K) for scaled patches (B, M, C, P, Q)."""
        colors = color_classes(scaling.restore(patches), self.side)  # (B, M, S)
        scores = predictions.unflatten(2, (self.side**2, LEVELS ** patches.shape[2]))  # (B, M, S, K)
        losses = F.cross_entropy(scores.flatten(0, 2), colors.flatten(), reduction="none")  # (B M S)
        right = (scores.detach().argmax(dim=3) == colors).float()  # (B, M, S)
        return TargetLoss(losses.view_as(right).mean(dim=(1, 2)), {"accuracy": right.mean(dim=(1, 2))})


class MeanColor(Colors):
    """The mean color of the patch: the paper's choice."""

    kind: Literal["mean_color"] = "mean_color"
    side: ClassVar[int] = 1


class Downsized(Colors):
    """The patch downsized to 4 x 4, each of its 16 colors told by itself."""

    kind: Literal["downsized"] = "downsized"
    side: ClassVar[int] = 4


class WholePatch(Config):
    """Every pixel of the patch as the model sees it, scaled, by mean squared error: slightly worse in the paper."""

    kind: Literal["whole_patch"] = "whole_patch"

    def check(self, channels: int, patch: Size) -> None:
        """Any patch will do."""

    def out_features(self, channels: int, patch: Size) -> int:
        """How many numbers tell one patch."""
        return channels * patch.height * patch.width

    def compute_loss(self, predictions: Tensor, patches: Tensor, scaling: Normalize) -> TargetLoss:
        """The error of predictions (B, M, C P Q) for scaled patches (B, M, C, P, Q)."""
        errors = (predictions - patches.flatten(2)).square()  # (B, M, C P Q)
        return TargetLoss(errors.mean(dim=(1, 2)), {})


TargetConfig = Annotated[MeanColor | Downsized | WholePatch, Field(discriminator="kind")]


class MaskedPatches(Config):
    """Hide half of the patches and have them told from the rest."""

    labeled: ClassVar[bool] = False

    kind: Literal["masked_patches"] = "masked_patches"
    target: TargetConfig = MeanColor()

    def build(self, model: Model, classes: int, class_counts: Sequence[int], scaling: Normalize) -> Task:
        """The task for a model with a stem of plain patches.

        The scaling is that of the images: colors are found in the bytes behind them. Labels are not looked at.
        The model's own pool and head learn nothing here, so they are frozen.
        """
        if not isinstance(model, VisionTransformer) or not isinstance(model.config.stem, Patches):
            found = "ResNet" if not isinstance(model, VisionTransformer) else "hybrid stem"
            raise ConfigError(
                f"masked patches need a model of plain patches, got a {found}",
                code="config.unsupported",
                where="task",
                hint="choose a model such as S/16",
            )
        check_patch_count(model.config.stem.grid(model.config.image_size))
        self.target.check(model.config.channels, model.config.stem.patch)
        return PatchPrediction(self, model, model.config.stem, scaling)


def check_patch_count(grid: Grid) -> None:
    if grid.cells() < 2:
        raise ConfigError(
            "a patch is told from the others, but the image is one patch",
            code="config.unsupported",
            where="image_size",
            hint="use larger images or smaller patches",
        )


class PatchPrediction(Task):
    """The mask token and the linear map that tells a patch are the task's; the model's weights serve any other task.

    In evaluation mode all images are corrupted alike, always at the same places, so that an image costs the same
    whatever its batch.
    """

    model: VisionTransformer

    def __init__(self, config: MaskedPatches, model: VisionTransformer, stem: Patches, scaling: Normalize) -> None:
        super().__init__()
        self.config, self.patch, self.scaling = config, stem.patch, scaling
        self.model = model
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        width, place = model.config.width, next(model.parameters()).device
        self.mask = nn.Parameter(torch.empty(width, device=place))
        self.tell = nn.Linear(width, config.target.out_features(model.config.channels, stem.patch), device=place)
        nn.init.normal_(self.mask, std=0.02)
        nn.init.normal_(self.tell.weight, std=0.02)  # not zero, or the model would learn nothing at the first step
        nn.init.zeros_(self.tell.bias)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        layout = self.model.layout(images)
        check_patch_count(layout.grid)
        corruption = self.corruption(len(images), layout.grid.cells(), rng, images.device)
        patches = corrupt(self.model.stem(images), corruption, self.mask)  # (B, N, D)
        tokens = self.model.encode(self.model.embed_patches(patches, layout), layout, layout.length())  # (B, L, D)
        seen = gather_patches(split_tokens(tokens, layout).patches, corruption.indices)  # (B, M, D)
        truth = gather_patches(cut_patches(images, self.patch), corruption.indices)  # (B, M, C P Q)
        pixels = truth.unflatten(2, (images.shape[1], *self.patch))  # (B, M, C, P, Q)
        losses, metrics = self.config.target.compute_loss(self.tell(seen).float(), pixels, self.scaling)
        means = {name: batch_mean(values) for name, values in metrics.items()}
        return Outcome(batch_mean(losses), len(images), means)

    def corruption(self, images: int, patches: int, rng: np.random.Generator, device: torch.device) -> Corruption:
        if self.training:
            return Corruption(*(part.to(device) for part in draw_corruption(images, patches, rng)))
        always = draw_corruption(1, patches, np.random.Generator(np.random.Philox(0)))
        return Corruption(*(part.expand(images, -1).to(device) for part in always))
