"""SimMIM: put a mask token in place of hidden patches, and predict their pixels by a linear map (arXiv 2111.09886).

B images, C channels, N patches of P x Q pixels, U units of several patches that are hidden together, D width.
"""

from collections.abc import Sequence
from math import ceil
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.core.rng import image_uniforms
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Grid, Model, patch_grid, split_tokens
from vitral.models.embed import cut_patches, join_patches
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.selfsupervised.collapse import feature_std
from vitral.tasks.selfsupervised.mae import GRAY
from vitral.tasks.selfsupervised.masking import check_plain_patches
from vitral.tasks.task import BaseTask, Outcome, Reconstruction, Task, batch_mean, full_precision

MASK_STD = 0.02


class SimMim(BaseTask):
    """Hide large squares of an image and predict their pixels from all tokens."""

    labeled: ClassVar[bool] = False
    best_by = "loss"
    trains = "masked_patches"

    kind: Literal["simmim"] = "simmim"
    ratio: float = Field(default=0.6, gt=0, lt=1)  # of the units that are hidden
    unit: Size = Size(32, 32)  # pixels that are hidden together

    def check(self, model: Config) -> None:
        check_plain_patches(model, self.kind)
        assert isinstance(model, Vit)
        patch, image = model.token_size(), model.image_size
        if any(side % step for side, step in zip(self.unit, patch, strict=True)):
            message = f"units of {self.unit} pixels are hidden, which do not divide into {patch} patches"
            hint = f"use {Size(2 * patch.height, 2 * patch.width)}"
            raise ConfigError(message, code="config.indivisible", where="unit", hint=hint)
        if any(side % step for side, step in zip(image, self.unit, strict=True)):
            message = f"a {image} image does not divide into units of {self.unit} pixels, which are hidden together"
            raise ConfigError(message, code="config.indivisible", where="unit", hint=f"use {patch}, or another size")
        units = self.units(image)
        if self.hidden_units(units) >= units.cells():
            message = f"all {units.cells()} units of {self.unit} pixels would be hidden, and nothing is left to see"
            raise ConfigError(message, code="config.conflict", where="unit", hint=f"use {patch}, or a lower ratio")

    def units(self, image: Size) -> Grid:
        """The units of an image."""
        return patch_grid(image, self.unit, "units")

    def hidden_units(self, units: Grid) -> int:
        """How many units are hidden."""
        return ceil(units.cells() * self.ratio)

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with plain patches. Labels are not used. Pool and head are frozen."""
        self.check(model.config)
        assert isinstance(model, VisionTransformer)
        return MaskedPixels(self, model, normalize)


def draw_unit_masks(rng: np.random.Generator, images: int, units: Grid, count: int, patches: Grid) -> Tensor:
    """Masks (B, N), true for the patches of `count` random units of each image."""
    order = np.argsort(image_uniforms(rng, images, units.cells()), axis=1, kind="stable")  # (B, U)
    masks = np.zeros((images, units.cells()), dtype=np.bool_)
    np.put_along_axis(masks, order[:, :count], True, axis=1)
    down, right = patches.rows // units.rows, patches.columns // units.columns
    whole = masks.reshape(images, *units).repeat(down, axis=1).repeat(right, axis=2)  # (B, R, S)
    return torch.from_numpy(whole.reshape(images, patches.cells()))


def build_mask_token(model: VisionTransformer) -> nn.Parameter:
    """What stands in place of hidden patches (D,), as the authors of BEiT and SimMIM initialize it."""
    token = nn.Parameter(torch.empty(model.config.width, device=next(model.parameters()).device))
    nn.init.trunc_normal_(token, std=MASK_STD, a=-MASK_STD, b=MASK_STD)
    return token


def encode_masked(model: VisionTransformer, images: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
    """The patch tokens (B, N, D) after the last layer, with the mask token in place of hidden patches (B, N)."""
    layout = model.layout(images)
    embedded = model.stem(images)  # (B, N, D)
    seen = torch.where(hidden[..., None], mask.to(embedded.dtype), embedded)
    tokens = model.encode(model.embed_patches(seen, layout), layout, layout.length())  # (B, L, D)
    return split_tokens(tokens, layout).patches


def hidden_mean(values: Tensor, hidden: Tensor) -> Tensor:
    """The mean (B,) of values (B, N) over the hidden patches of each image."""
    chosen = hidden.to(values)
    return (values * chosen).sum(dim=1) / chosen.sum(dim=1).clamp(min=1)


class PixelPrediction(NamedTuple):
    """What is predicted of a batch, and the pixels that are true."""

    hidden: Tensor  # (B, N)
    outputs: Tensor  # (B, N, C P Q), normalized
    pixels: Tensor  # (B, N, C P Q), normalized
    encoded: Tensor  # (B, N, D)


class MaskedPixels(Task):
    """Adds a mask token and a linear prediction of pixels to the model.

    In evaluation mode the same patches of all images are hidden, so that losses are reproducible.
    """

    model: VisionTransformer

    def __init__(self, config: SimMim, model: VisionTransformer, normalize: Normalize) -> None:
        super().__init__()
        self.config, self.normalize, self.model = config, normalize, model
        self.patch = model.config.token_size()
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        pixels = model.config.channels * self.patch.height * self.patch.width
        self.mask_token = build_mask_token(model)
        self.predict = nn.Linear(model.config.width, pixels, device=self.mask_token.device)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        hidden, outputs, pixels, encoded = self.predict_pixels(images, rng)
        # The authors divide by the number of hidden pixels and 1e-5, then by the channels.
        losses = hidden_mean((outputs - pixels).abs().mean(dim=2), hidden)  # (B,)
        spread = feature_std(encoded.mean(dim=1), self.collective)
        return Outcome(batch_mean(losses), len(images), {"feature_std": spread})

    def predict_pixels(self, images: Tensor, rng: np.random.Generator) -> PixelPrediction:
        """Hide patches of normalized images (B, C, H, W) and predict the pixels of all."""
        hidden = self.draw_hidden(images, rng)
        encoded = encode_masked(self.model, images, hidden, self.mask_token)
        outputs = full_precision(self.predict(encoded))  # (B, N, C P Q)
        return PixelPrediction(hidden, outputs, cut_patches(images, self.patch), encoded)

    def draw_hidden(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Which patches of each image are hidden, (B, N)."""
        grid, units = self.model.layout(images).grid, self.config.units(Size(*images.shape[2:]))
        count = self.config.hidden_units(units)
        if self.training:
            return draw_unit_masks(rng, len(images), units, count, grid).to(images.device)
        fixed = draw_unit_masks(np.random.Generator(np.random.Philox(0)), 1, units, count, grid)
        return fixed.expand(len(images), -1).to(images.device)

    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        hidden, outputs, _, _ = self.predict_pixels(images, np.random.Generator(np.random.Philox(0)))
        predicted = join_patches(outputs, self.model.layout(images).grid, self.patch)
        return picture_hidden(self.normalize.restore(images), self.normalize.restore(predicted), hidden, self.patch)


def picture_hidden(levels: Tensor, predicted: Tensor, hidden: Tensor, patch: Size) -> Reconstruction:
    """The pictures of a prediction of images with levels from 0 to 255, of which some patches (B, N) were hidden."""
    grid = patch_grid(Size(*levels.shape[2:]), patch)
    whole, guess = (cut_patches(each, patch) for each in (levels, predicted.clamp(0, 255)))  # (B, N, C P Q)
    gray = torch.full_like(whole, GRAY)
    inputs, outputs = (join_patches(torch.where(hidden[..., None], each, whole), grid, patch) for each in (gray, guess))
    return Reconstruction(levels, inputs, levels, outputs)
