"""Masked patch prediction: the paper's self-supervision (appendix B.1.2).

B images, C channels, N patches, M of them corrupted, P x Q pixels a patch, D width.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError
from vitral.core.rng import image_uniforms
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Grid, Model, split_tokens
from vitral.models.embed import Patches, PatchStem, cut_patches, join_patches
from vitral.models.vit import VisionTransformer
from vitral.tasks.task import BaseTask, Outcome, Reconstruction, Task, batch_mean, full_precision

CORRUPTED = 0.5  # of the patches
MASKED, SWAPPED = 0.8, 0.1  # of the corrupted patches; the rest stay unchanged and are predicted as well


class Corruption(NamedTuple):
    """The corruption of the patches of a batch."""

    indices: Tensor  # (B, M), of the corrupted patches
    sources: Tensor  # (B, N), the patch whose embedding is used: the same, or another of the image
    masked: Tensor  # (B, N), whether the mask token is used instead


def draw_corruption(images: int, patches: int, rng: np.random.Generator) -> Corruption:
    """Draw for each image the corrupted patches, a fixed number, and whether each is masked, swapped or unchanged.

    An image of a batch has the same draws however the batch is split into processes.
    """
    count = ceil(CORRUPTED * patches)
    uniforms = image_uniforms(rng, images, patches + 2 * count)
    order, chance, distance = np.split(uniforms, [patches, patches + count], axis=1)
    places = np.argsort(order, axis=1, kind="stable")[:, :count]  # (B, M)
    return replace_patches(places, chance, 1 + (distance * (patches - 1)).astype(np.int64), patches)


def draw_corruption_by_process(images: int, patches: int, rng: np.random.Generator) -> Corruption:
    """The same from the generator of the process: what runs that began so go on with."""
    count = ceil(CORRUPTED * patches)
    places = rng.permuted(np.tile(np.arange(patches), (images, 1)), axis=1)[:, :count]  # (B, M)
    chance = rng.random((images, count))
    return replace_patches(places, chance, rng.integers(1, patches, (images, count)), patches)


def replace_patches(
    places: NDArray[np.int64], chance: NDArray[np.float64], distance: NDArray[np.int64], patches: int
) -> Corruption:
    """Corrupt the patches at these places (B, M): by chance masked, swapped for one so far away, or unchanged."""
    own = np.tile(np.arange(patches), (len(places), 1))  # (B, N)
    others = (places + distance) % patches  # (B, M), never the patch itself
    swapped = (chance >= MASKED) & (chance < MASKED + SWAPPED)
    sources, masked = own.copy(), np.zeros(own.shape, dtype=bool)
    np.put_along_axis(sources, places, np.where(swapped, others, places), axis=1)
    np.put_along_axis(masked, places, chance < MASKED, axis=1)
    return Corruption(torch.from_numpy(places), torch.from_numpy(sources), torch.from_numpy(masked))


def gather_patches(patches: Tensor, places: Tensor) -> Tensor:
    """The patches (B, N, D) at these indices (B, M): (B, M, D)."""
    return patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2]))


def corrupt(patches: Tensor, corruption: Corruption, mask: Tensor) -> Tensor:
    """The embedded patches (B, N, D) with some replaced by others or by the mask token (D,)."""
    sources = gather_patches(patches, corruption.sources)
    return torch.where(corruption.masked[..., None], mask.to(patches.dtype), sources)


LEVELS = 8  # of a channel: 3 bits
MAX_CHANNELS = 4  # their colors are 4,096
GRAY = 128.0  # of a masked patch in a picture


class PatchPictures(NamedTuple):
    """Patches (B, M, C, P, Q) with levels from 0 to 255."""

    predictions: Tensor
    targets: Tensor


class TargetLoss(NamedTuple):
    """The loss and metrics of each image."""

    losses: Tensor  # (B,)
    metrics: dict[str, Tensor]  # each (B,), detached


def color_classes(pixels: Tensor, side: int) -> Tensor:
    """The color classes (B, M, S) of patches (B, M, C, P, Q) of bytes, downsized to S = side x side by means.

    Each mean keeps its three highest bits. The first channel counts most: red 7, green 0, blue 1 is 7 * 64 + 0 * 8 + 1.
    """
    means = F.adaptive_avg_pool2d(pixels.flatten(0, 1), side)  # (B M, C, side, side)
    levels = (means / (256 // LEVELS)).long().flatten(2)  # (B M, C, S), each from 0 to 7
    colors = levels[:, 0]
    for channel in range(1, levels.shape[1]):
        colors = colors * LEVELS + levels[:, channel]
    return colors.unflatten(0, pixels.shape[:2])  # (B, M, S)


def color_patches(colors: Tensor, channels: int, patch: Size) -> Tensor:
    """Patches (B, M, C, P, Q) of color classes (B, M, S): undoes `color_classes` up to the middle of each color."""
    levels = [colors // LEVELS ** (channels - 1 - channel) % LEVELS for channel in range(channels)]
    means = (torch.stack(levels, dim=2) + 0.5) * (256 // LEVELS)  # (B, M, C, S)
    side = round(colors.shape[2] ** 0.5)
    tiles = means.unflatten(3, (side, side)).flatten(0, 1)  # (B M, C, side, side)
    return F.interpolate(tiles, size=tuple(patch), mode="nearest").unflatten(0, colors.shape[:2])


class Colors(Config):
    """A color of 3 bits per channel, 512 classes for RGB, at each pixel of the downsized patch."""

    side: ClassVar[int]  # of the downsized patch

    def check(self, channels: int, patch: Size) -> None:
        """Raise ConfigError for unsupported channels or patches."""
        if channels > MAX_CHANNELS:
            message = f"{channels} channels of 3 bits are too many colors to choose from"
            hint = f"use target=whole_patch, or at most {MAX_CHANNELS} channels"
            raise ConfigError(message, code="config.unsupported", where="target", hint=hint)
        if min(patch) < self.side:
            message = f"a patch of {patch} pixels cannot be downsized to {self.side}x{self.side}"
            hint = "use target=mean_color, or larger patches"
            raise ConfigError(message, code="config.unsupported", where="target", hint=hint)

    def out_features(self, channels: int, patch: Size) -> int:
        """Outputs per patch."""
        return self.side**2 * LEVELS**channels

    def compute_loss(self, predictions: Tensor, patches: Tensor, scaling: Normalize) -> TargetLoss:
        """Cross-entropy and accuracy of predictions (B, M, S K) for scaled patches (B, M, C, P, Q)."""
        colors = color_classes(scaling.restore(patches), self.side)  # (B, M, S)
        scores = predictions.unflatten(2, (self.side**2, LEVELS ** patches.shape[2]))  # (B, M, S, K)
        losses = F.cross_entropy(scores.flatten(0, 2), colors.flatten(), reduction="none")  # (B M S)
        right = (scores.detach().argmax(dim=3) == colors).float()  # (B, M, S)
        return TargetLoss(losses.view_as(right).mean(dim=(1, 2)), {"accuracy": right.mean(dim=(1, 2))})

    def draw(self, predictions: Tensor, patches: Tensor, scaling: Normalize) -> PatchPictures:
        """The most probable colors of predictions (B, M, S K), and those of scaled patches (B, M, C, P, Q)."""
        channels, patch = patches.shape[2], Size(*patches.shape[3:])
        scores = predictions.unflatten(2, (self.side**2, LEVELS**channels))  # (B, M, S, K)
        colors = scores.argmax(dim=3), color_classes(scaling.restore(patches), self.side)
        return PatchPictures(*(color_patches(each, channels, patch) for each in colors))


class MeanColor(Colors):
    """The mean color of the patch: the paper's choice."""

    kind: Literal["mean_color"] = "mean_color"
    side: ClassVar[int] = 1


class Downsized(Colors):
    """The 16 colors of the patch downsized to 4 x 4."""

    kind: Literal["downsized"] = "downsized"
    side: ClassVar[int] = 4


class WholePatch(Config):
    """Every normalized pixel of the patch, by mean squared error: slightly worse in the paper."""

    kind: Literal["whole_patch"] = "whole_patch"

    def check(self, channels: int, patch: Size) -> None:
        """Any patch is supported."""

    def out_features(self, channels: int, patch: Size) -> int:
        """Outputs per patch."""
        return channels * patch.height * patch.width

    def compute_loss(self, predictions: Tensor, patches: Tensor, scaling: Normalize) -> TargetLoss:
        """The error of predictions (B, M, C P Q) for scaled patches (B, M, C, P, Q)."""
        errors = (predictions - patches.flatten(2)).square()  # (B, M, C P Q)
        return TargetLoss(errors.mean(dim=(1, 2)), {})

    def draw(self, predictions: Tensor, patches: Tensor, scaling: Normalize) -> PatchPictures:
        """The pixels of predictions (B, M, C P Q), and those of scaled patches (B, M, C, P, Q)."""
        both = predictions.view_as(patches), patches
        return PatchPictures(*(scaling.restore(each).clamp(0, 255) for each in both))


TargetConfig = Annotated[MeanColor | Downsized | WholePatch, OpenUnion()]


class MaskedPatches(BaseTask):
    """Corrupt half of the patches and predict them from the rest."""

    labeled: ClassVar[bool] = False
    best_by = "loss"  # the most probable of 512 colors is rarely the right one, so accuracy is coarse
    trains = "masked_patches"

    kind: Literal["masked_patches"] = "masked_patches"
    target: TargetConfig = MeanColor()
    draws: Literal["by_image", "by_process"] = "by_image"  # by_process: as recipes did before format 5

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with plain patches. Labels are not used.

        The normalization is that of the images; it is undone to compute colors. Pool and head are frozen.
        """
        if not isinstance(model, VisionTransformer) or not isinstance(model.config.stem, Patches):
            found = f"the stem {model.config.stem.kind}" if isinstance(model, VisionTransformer) else "a ResNet"
            message = f"masked patch prediction needs a model with plain patches, got {found}"
            raise ConfigError(message, code="config.unsupported", where="task", hint="choose a model such as S/16")
        check_patch_count(model.config.stem.grid(model.config.image_size))
        self.target.check(model.config.channels, model.config.stem.patch)
        return PatchPrediction(self, model, model.config.stem, normalize)


def check_patch_count(grid: Grid) -> None:
    if grid.cells() < 2:
        message = "patches are predicted from each other, but the image is one patch"
        hint = "use larger images or smaller patches"
        raise ConfigError(message, code="config.unsupported", where="image_size", hint=hint)


class Prediction(NamedTuple):
    """The outputs for the corrupted patches of a batch, and their scaled pixels."""

    corruption: Corruption
    outputs: Tensor  # (B, M, O), float32 or float64
    pixels: Tensor  # (B, M, C, P, Q)


class PatchPrediction(Task):
    """Adds a mask token and a linear prediction head to the model.

    In evaluation mode all images are corrupted at the same patches, so that losses are reproducible.
    """

    model: VisionTransformer

    def __init__(self, config: MaskedPatches, model: VisionTransformer, stem: Patches, scaling: Normalize) -> None:
        super().__init__()
        self.config, self.patch, self.scaling = config, stem.patch, scaling
        self.model = model
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        width, device = model.config.width, next(model.parameters()).device
        self.mask = nn.Parameter(torch.empty(width, device=device))
        self.tell = nn.Linear(width, config.target.out_features(model.config.channels, stem.patch), device=device)
        nn.init.normal_(self.mask, std=0.02)
        nn.init.normal_(self.tell.weight, std=0.02)  # not zero, or the model would get no gradient in the first step
        nn.init.zeros_(self.tell.bias)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        _, outputs, pixels = self.predict(images, rng)
        losses, metrics = self.config.target.compute_loss(outputs, pixels, self.scaling)
        means = {name: batch_mean(values) for name, values in metrics.items()}
        return Outcome(batch_mean(losses), len(images), means)

    def predict(self, images: Tensor, rng: np.random.Generator) -> Prediction:
        """Corrupt the patches of normalized images (B, C, H, W) and predict them."""
        images = self.fit(images)
        layout = self.model.layout(images)
        check_patch_count(layout.grid)
        corruption = self.corruption(len(images), layout.grid.cells(), rng, images.device)
        patches = corrupt(self.model.stem(images), corruption, self.mask)  # (B, N, D)
        tokens = self.model.encode(self.model.embed_patches(patches, layout), layout, layout.length())  # (B, L, D)
        predicted = gather_patches(split_tokens(tokens, layout).patches, corruption.indices)  # (B, M, D)
        truth = gather_patches(cut_patches(images, self.patch), corruption.indices)  # (B, M, C P Q)
        pixels = truth.unflatten(2, (images.shape[1], *self.patch))  # (B, M, C, P, Q)
        return Prediction(corruption, full_precision(self.tell(predicted)), pixels)

    def fit(self, images: Tensor) -> Tensor:
        """The images as the patches cover them."""
        stem = self.model.stem
        return stem.fit(images) if isinstance(stem, PatchStem) else images

    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        if not isinstance(self.config.target, Colors | WholePatch):
            return None  # a user's own target may be no color
        images = self.fit(images)
        corruption, outputs, pixels = self.predict(images, np.random.Generator(np.random.Philox(0)))
        drawn = self.config.target.draw(outputs, pixels, self.scaling)
        levels, grid = self.scaling.restore(images), self.model.layout(images).grid
        patches = cut_patches(levels, self.patch)  # (B, N, C P Q)
        gray = torch.full(patches.shape[2:], GRAY, device=images.device)
        places = corruption.indices[..., None].expand(-1, -1, patches.shape[2])  # (B, M, C P Q)
        joined = [
            join_patches(each, grid, self.patch)
            for each in (
                corrupt(patches, corruption, gray),
                patches.scatter(1, places, drawn.targets.flatten(2)),
                patches.scatter(1, places, drawn.predictions.flatten(2)),
            )
        ]
        return Reconstruction(levels, *joined)

    def corruption(self, images: int, patches: int, rng: np.random.Generator, device: torch.device) -> Corruption:
        draw = draw_corruption if self.config.draws == "by_image" else draw_corruption_by_process
        if self.training:
            return Corruption(*(part.to(device) for part in draw(images, patches, rng)))
        fixed = draw(1, patches, np.random.Generator(np.random.Philox(0)))
        return Corruption(*(part.expand(images, -1).to(device) for part in fixed))
