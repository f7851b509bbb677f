"""Masked autoencoders: encode a quarter of the patches, and predict the pixels of the rest (arXiv 2111.06377).

B images, C channels, N patches of P x Q pixels, M of them kept, D width of the encoder, d width of the decoder.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.attention import Attention
from vitral.models.base import Layout, Model, check_heads
from vitral.models.embed import cut_patches, join_patches
from vitral.models.init import Xavier, initialize
from vitral.models.pool import MeanPool
from vitral.models.position import SinCos2d
from vitral.models.vit import Tokens, VisionTransformer, Vit, build_blocks
from vitral.tasks.selfsupervised.collapse import feature_std
from vitral.tasks.selfsupervised.masking import RandomMask, check_maskable, draw_random_mask
from vitral.tasks.task import BaseTask, Outcome, Reconstruction, Task, batch_mean, full_precision

GRAY = 128.0  # of a masked patch in a picture
VARIANCE_EPS = 1e-6


class PixelScale(NamedTuple):
    """What the pixels of each patch are shifted and divided by, each (B, N, 1)."""

    mean: Tensor
    std: Tensor


class NormalizedPixels(Config):
    """Every pixel of a patch, by the mean and standard deviation of that patch: better features than plain pixels."""

    kind: Literal["normalized_pixels"] = "normalized_pixels"

    def scale(self, pixels: Tensor) -> PixelScale:
        """The scale of flattened patches (B, N, P Q C)."""
        mean = pixels.mean(dim=-1, keepdim=True)
        variance = (pixels - mean).square().sum(dim=-1, keepdim=True) / (pixels.shape[-1] - 1)  # unbiased
        return PixelScale(mean, (variance + VARIANCE_EPS).sqrt())


class Pixels(Config):
    """Every normalized pixel of a patch as it is."""

    kind: Literal["pixels"] = "pixels"

    def scale(self, pixels: Tensor) -> PixelScale:
        """The scale of flattened patches (B, N, P Q C)."""
        return PixelScale(pixels.new_zeros(1), pixels.new_ones(1))


PixelTarget = Annotated[NormalizedPixels | Pixels, OpenUnion()]


class Decoder(Config):
    """The decoder, which is thrown away after training. The defaults are the authors' for every encoder."""

    width: int = Field(default=512, ge=1, le=100_000)
    depth: int = Field(default=8, ge=1, le=1_000)
    heads: int = Field(default=16, ge=1)


class Mae(BaseTask):
    """Hide most patches and predict their pixels from the rest."""

    labeled: ClassVar[bool] = False
    best_by = "loss"
    trains = "masked_patches"

    kind: Literal["mae"] = "mae"
    ratio: float = Field(default=0.75, gt=0, lt=1)  # of the patches that are hidden
    target: PixelTarget = NormalizedPixels()
    decoder: Decoder = Decoder()

    def check(self, model: Config) -> None:
        check_maskable(model, self.kind)
        check_heads(self.decoder.width, self.decoder.heads, "task.decoder.heads")
        if self.decoder.width % 4:
            message = f"positions of the decoder need a width that 4 divides, got {self.decoder.width}"
            raise ConfigError(message, code="config.indivisible", where="decoder.width", hint="use 128, 192 or 512")

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with plain patches. Labels are not used. Pool and head are frozen."""
        self.check(model.config)
        assert isinstance(model, VisionTransformer)
        return MaskedAutoencoder(self, model, normalize)


def decoder_config(encoder: Vit, decoder: Decoder) -> Vit:
    """The decoder as a Vision Transformer: its blocks and positions are used."""
    return Vit(
        image_size=encoder.image_size,
        channels=encoder.channels,
        width=decoder.width,
        depth=decoder.depth,
        stem=encoder.stem,
        tokens=Tokens(cls=encoder.tokens.cls),
        pool=MeanPool(),  # which any tokens allow; it is not used
        position=SinCos2d(endpoint=False),
        mixer=Attention(heads=decoder.heads),
        mlp=encoder.mlp,
        norm=encoder.norm,
        eps=encoder.eps,
        init=Xavier(),
    )


class PixelDecoder(nn.Module):
    """Encoded patches (B, cls + M, D) to the predicted pixels of all patches (B, N, P Q C)."""

    def __init__(self, encoder: Vit, settings: Decoder) -> None:
        super().__init__()
        config = decoder_config(encoder, settings)
        context = config.context()
        patch = encoder.token_size()
        self.project = nn.Linear(encoder.width, config.width)
        self.mask = nn.Parameter(torch.empty(1, 1, config.width))
        self.position = config.position.build(context)
        self.blocks = nn.ModuleList(build_blocks(config, context))
        self.norm = context.build_norm()
        self.predict = nn.Linear(config.width, patch.height * patch.width * encoder.channels)
        initialize(self, config.init)
        for linear in (self.project, self.predict):
            config.init.dense(linear)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, restore: Tensor, layout: Layout) -> Tensor:
        cls, kept = self.project(tokens).tensor_split([layout.cls], dim=1)  # (B, M, d)
        hidden = self.mask.to(kept.dtype).expand(len(kept), restore.shape[1] - kept.shape[1], -1)  # (B, N - M, d)
        order = restore[..., None].expand(-1, -1, kept.shape[2])  # (B, N, d)
        patches = torch.cat([kept, hidden], dim=1).gather(1, order)  # (B, N, d), row by row
        whole = self.position(torch.cat([cls, patches], dim=1), layout, 0)
        for block in self.blocks:
            whole = block(whole, layout, layout.length())
        return self.predict(self.norm(whole[:, layout.cls :]))


def cut_pixels(images: Tensor, patch: Size) -> Tensor:
    """The pixels of each patch in the authors' order: rows, columns, channels; (B, N, P Q C)."""
    return cut_patches(images, patch).unflatten(2, (images.shape[1], -1)).mT.flatten(2)


def join_pixels(pixels: Tensor, layout: Layout, patch: Size) -> Tensor:
    """The images (B, C, H, W) of flattened patches: undoes `cut_pixels`."""
    return join_patches(pixels.unflatten(2, (patch.height * patch.width, -1)).mT.flatten(2), layout.grid, patch)


class PixelPrediction(NamedTuple):
    """What is predicted of a batch, and the pixels that are true."""

    mask: RandomMask
    outputs: Tensor  # (B, N, P Q C), in the scale of the target
    pixels: Tensor  # (B, N, P Q C), normalized
    encoded: Tensor  # (B, cls + M, D)


class MaskedAutoencoder(Task):
    """Adds a decoder to the model.

    In evaluation mode the same patches of all images are hidden, so that losses are reproducible.
    """

    model: VisionTransformer

    def __init__(self, config: Mae, model: VisionTransformer, normalize: Normalize) -> None:
        super().__init__()
        self.config, self.normalize, self.model = config, normalize, model
        self.patch = model.config.token_size()
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        self.decoder = PixelDecoder(model.config, config.decoder).to(next(model.parameters()).device)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        mask, outputs, pixels, encoded = self.predict(images, rng)
        scale = self.config.target.scale(pixels)
        errors = (outputs - (pixels - scale.mean) / scale.std).square().mean(dim=2)  # (B, N)
        hidden = mask.hidden().to(errors)  # (B, N)
        losses = (errors * hidden).sum(dim=1) / hidden.sum(dim=1).clamp(min=1)  # (B,)
        spread = feature_std(encoded.mean(dim=1), self.collective)
        return Outcome(batch_mean(losses), len(images), {"feature_std": spread})

    def predict(self, images: Tensor, rng: np.random.Generator) -> PixelPrediction:
        """Hide patches of normalized images (B, C, H, W) and predict all of them."""
        layout = self.model.layout(images)
        mask = self.mask(len(images), layout.grid.cells(), rng, images.device)
        tokens = self.model.forward_kept(images, mask.kept)  # (B, prefix + M, D)
        prefix, patches = tokens.tensor_split([layout.prefix()], dim=1)
        encoded = torch.cat([prefix[:, : layout.cls], patches], dim=1)  # (B, cls + M, D)
        outputs = self.decoder(encoded, mask.restore, layout._replace(registers=0))
        return PixelPrediction(mask, full_precision(outputs), cut_pixels(images, self.patch), encoded)

    def mask(self, images: int, patches: int, rng: np.random.Generator, device: torch.device) -> RandomMask:
        """The mask of a batch."""
        if self.training:
            drawn = draw_random_mask(rng, images, patches, self.config.ratio)
        else:
            fixed = draw_random_mask(np.random.Generator(np.random.Philox(0)), 1, patches, self.config.ratio)
            drawn = RandomMask(*(part.expand(images, -1) for part in fixed))
        return RandomMask(*(part.to(device) for part in drawn))

    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        mask, outputs, pixels, _ = self.predict(images, np.random.Generator(np.random.Philox(0)))
        layout, hidden = self.model.layout(images), mask.hidden()[..., None]  # (B, N, 1)
        scale = self.config.target.scale(pixels)
        levels = self.normalize.restore(images)
        predicted = self.normalize.restore(join_pixels(outputs * scale.std + scale.mean, layout, self.patch))
        whole, guess = (cut_pixels(each, self.patch) for each in (levels, predicted.clamp(0, 255)))
        gray = torch.where(hidden, torch.full_like(whole, GRAY), whole)
        joined = [join_pixels(each, layout, self.patch) for each in (gray, torch.where(hidden, guess, whole))]
        return Reconstruction(levels, joined[0], levels, joined[1])
