"""iGPT: predict the color of each pixel from those before it (Generative Pretraining from Pixels, Chen et al., 2020).

B images, C channels, N pixels of R x S, K colors of the palette, L tokens (prefix + N), D width.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.core.rng import image_uniforms
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.attention import BaseAttention, Causal, cached_keys
from vitral.models.base import Grid, Layout, Model
from vitral.models.embed import Palette, PaletteStem
from vitral.models.hooks import eval_mode
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.selfsupervised.collapse import feature_std
from vitral.tasks.selfsupervised.mae import GRAY
from vitral.tasks.selfsupervised.simmim import hidden_mean
from vitral.tasks.selfsupervised.targets.kmeans import fit_centers
from vitral.tasks.task import BaseTask, Outcome, Reconstruction, Task, batch_mean, full_precision

PIXELS_FOR_COLOR = 256  # of the training images, from which the palette is computed


def refuse(message: str, where: str, hint: str) -> ConfigError:
    return ConfigError(message, code="config.unsupported", where=where, hint=hint)


class Autoregressive(Config):
    """Each pixel from those before it, in reading order: -log p(x_i | x_1 ... x_i-1), the mean over all pixels.

    The class token stands before the first pixel, as the start of the sequence.
    """

    kind: Literal["autoregressive"] = "autoregressive"

    def check(self, model: Vit) -> None:
        """Raise ConfigError unless the model is causal, and its pixels can be drawn one after another."""
        if not isinstance(model.mixer, Causal):
            message = f"predicting each pixel from those before it needs causal attention, got {model.mixer.kind}"
            raise refuse(message, "model.mixer", "set model.mixer=causal, or task.objective=masked")
        if not model.layout(model.image_size).prefix():
            message = "the first pixel is predicted from the class token, and there is none"
            raise refuse(message, "model.tokens.cls", "set model.tokens.cls=true, or task.objective=masked")
        if model.position.applies_to == "attention" or getattr(model.position, "where", "stem") != "stem":
            message = f"{model.position.kind} positions are applied in every layer, and must enter before the first"
            raise refuse(message, "model.position", "set model.position=learned1d")

    def draw_hidden(self, rng: np.random.Generator, images: int, pixels: int) -> Tensor:
        """Which pixels are predicted (B, N): all."""
        return torch.ones(images, pixels, dtype=torch.bool)

    def encode(self, model: VisionTransformer, codes: Tensor, hidden: Tensor, layout: Layout) -> Tensor:
        """The tokens (B, N, D) that each pixel is predicted from: the one before it."""
        assert isinstance(model.stem, PaletteStem)
        tokens = model.embed_patches(model.stem.embed(codes), layout)  # (B, L, D)
        return model.encode(tokens, layout, layout.length())[:, layout.prefix() - 1 : -1]


class Masked(Config):
    """Hidden pixels from all others, as in BERT: the embeddings of hidden pixels are 0. Needs no class token."""

    kind: Literal["masked"] = "masked"
    ratio: float = Field(default=0.15, gt=0, lt=1)  # the probability of each pixel to be hidden

    def check(self, model: Vit) -> None:
        """Raise ConfigError unless every token sees all others."""
        if isinstance(model.mixer, Causal) or not isinstance(model.mixer, BaseAttention):
            message = f"hidden pixels are predicted from all others, which the {model.mixer.kind} mixer does not show"
            raise refuse(message, "model.mixer", "set model.mixer=attention, or task.objective=autoregressive")

    def draw_hidden(self, rng: np.random.Generator, images: int, pixels: int) -> Tensor:
        """Which pixels are hidden and predicted (B, N)."""
        return torch.from_numpy(image_uniforms(rng, images, pixels) < self.ratio)

    def encode(self, model: VisionTransformer, codes: Tensor, hidden: Tensor, layout: Layout) -> Tensor:
        """The tokens (B, N, D) that each pixel is predicted from: its own."""
        assert isinstance(model.stem, PaletteStem)
        seen = model.stem.embed(codes).masked_fill(hidden[..., None], 0.0)  # (B, N, D)
        return model.encode(model.embed_patches(seen, layout), layout, layout.length())[:, layout.prefix() :]


ObjectiveConfig = Annotated[Autoregressive | Masked, OpenUnion()]


class Igpt(BaseTask):
    """Predict pixels as colors of a palette."""

    labeled: ClassVar[bool] = False
    best_by = "loss"
    trains = "masked_patches"

    kind: Literal["igpt"] = "igpt"
    objective: ObjectiveConfig = Autoregressive()

    def check(self, model: Config) -> None:
        if not isinstance(model, Vit) or not isinstance(model.stem, Palette):
            found = f"the stem {model.stem.kind}" if isinstance(model, Vit) else "a ResNet"
            message = f"the task igpt needs a model whose tokens are pixels of a palette, got {found}"
            raise refuse(message, "model.stem", "set model.stem=palette, or leave the model to the recipe")
        self.objective.check(model)

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with a palette. Labels are not used. Pool and head are frozen."""
        self.check(model.config)
        assert isinstance(model, VisionTransformer)
        return PixelModeling(self, model, normalize)


class PixelModeling(Task):
    """Adds a table of outputs to the model, which begins as zero: the first loss is ln(K).

    The palette is computed before the first step, unless the weights to start from have one. The loss of an image is
    the mean over the pixels that are predicted. In evaluation mode the same pixels of all images are hidden.
    """

    model: VisionTransformer

    def __init__(self, config: Igpt, model: VisionTransformer, normalize: Normalize) -> None:
        super().__init__()
        self.config, self.normalize, self.model = config, normalize, model
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        colors = len(self.stem.palette)
        self.predict = nn.Linear(model.config.width, colors, bias=False, device=self.stem.palette.device)
        nn.init.zeros_(self.predict.weight)
        pixels = model.config.layout(model.config.image_size).grid.cells()
        self.fit_images = 0 if self.stem.is_fitted() else ceil(colors * PIXELS_FOR_COLOR / pixels)

    @property
    def stem(self) -> PaletteStem:
        assert isinstance(self.model.stem, PaletteStem)
        return self.model.stem

    @torch.no_grad()
    def fit_buffers(self, images: Tensor, rng: np.random.Generator) -> None:
        """The palette by k-means of all pixels. Images of fewer colors have them all; the last one fills the rest."""
        pixels = images.flatten(2).mT.flatten(0, 1).double().cpu().numpy()  # (n N, C)
        palette, colors = self.stem.palette, np.unique(pixels, axis=0)
        if len(colors) >= len(palette):
            colors = fit_centers(pixels, len(palette), rng)
        places = np.minimum(np.arange(len(palette)), len(colors) - 1)
        palette.copy_(torch.from_numpy(colors[places]))

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        codes, hidden = self.stem.codes(images), self.draw_hidden(images, rng)  # each (B, N)
        encoded = self.config.objective.encode(self.model, codes, hidden, self.model.layout(images))  # (B, N, D)
        logits = full_precision(self.predict(encoded))  # (B, N, K)
        losses = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none").view_as(codes)  # (B, N)
        spread = feature_std(encoded.mean(dim=1), self.collective)
        return Outcome(batch_mean(hidden_mean(losses, hidden)), len(images), {"feature_std": spread})

    def draw_hidden(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Which pixels of each image are predicted, (B, N)."""
        count, pixels = len(images), images.shape[2] * images.shape[3]
        if self.training:
            return self.config.objective.draw_hidden(rng, count, pixels).to(images.device)
        fixed = self.config.objective.draw_hidden(np.random.Generator(np.random.Philox(0)), 1, pixels)
        return fixed.expand(count, -1).to(images.device)

    @torch.no_grad()
    def complete(self, codes: Tensor, grid: Grid, seen: int, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
        """The codes (B, N) with all but the first `seen` drawn, one after another, from those before them.

        A uniform number in [0, 1) for each of them (B, N - seen) decides. A low temperature draws probable colors.
        """
        assert isinstance(self.config.objective, Autoregressive)
        layout = self.model.config.layout(self.model.config.image_size)._replace(grid=grid)
        drawn, prefix = codes.clone(), layout.prefix()
        with eval_mode(self.model), cached_keys(self.model):
            for place in range(seen, layout.grid.cells()):
                tokens = self.model.embed_patches(self.stem.embed(drawn), layout)  # (B, L, D)
                new = tokens[:, 0 if place == seen else prefix + place - 1 : prefix + place]  # (B, new, D)
                piece = Layout(0, 0, Grid(1, new.shape[1]))
                encoded = self.model.encode(new, piece, piece.length())[:, -1]  # (B, D)
                logits = full_precision(self.predict(encoded)) / temperature  # (B, K)
                below = logits.double().softmax(dim=1).cumsum(dim=1)  # (B, K)
                numbers = uniforms[:, place - seen, None].to(below)
                drawn[:, place] = (below <= numbers).sum(dim=1).clamp(max=below.shape[1] - 1)
        return drawn

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        """Images completed from their upper half, or with hidden pixels predicted; in the colors of the palette."""
        rng, layout = np.random.Generator(np.random.Philox(0)), self.model.layout(images)
        codes, grid = self.stem.codes(images), layout.grid
        if isinstance(self.config.objective, Autoregressive):
            seen = grid.rows // 2 * grid.columns
            uniforms = torch.from_numpy(image_uniforms(rng, len(images), grid.cells() - seen))
            guess = self.complete(codes, grid, seen, uniforms)
            hidden = (torch.arange(grid.cells(), device=images.device) >= seen).expand_as(codes)
        else:
            hidden = self.draw_hidden(images, rng)
            encoded = self.config.objective.encode(self.model, codes, hidden, layout)
            guess = torch.where(hidden, self.predict(encoded).argmax(dim=2), codes)
        targets, predictions = (self.normalize.restore(self.stem.colors(each, grid)) for each in (codes, guess))
        gray = torch.full_like(targets, GRAY)
        inputs = torch.where(hidden.unflatten(1, grid)[:, None], gray, targets)
        return Reconstruction(self.normalize.restore(images), inputs, targets, predictions.clamp(0, 255))
