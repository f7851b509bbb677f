"""BEiT: put a mask token in place of blocks of patches, and predict a target of each hidden patch (arXiv 2106.08254).

B images, C channels, N patches of P x Q pixels, D width, O outputs for a patch.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Grid, Model
from vitral.models.embed import cut_patches, join_patches
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.selfsupervised.collapse import feature_std
from vitral.tasks.selfsupervised.masking import Blocks, check_plain_patches, draw_block_masks
from vitral.tasks.selfsupervised.projection import initialize_linear
from vitral.tasks.selfsupervised.simmim import build_mask_token, encode_masked, hidden_mean, picture_hidden
from vitral.tasks.selfsupervised.targets.codes import PatchCodes
from vitral.tasks.selfsupervised.targets.features import TeacherFeatures
from vitral.tasks.selfsupervised.targets.hog import Hog
from vitral.tasks.selfsupervised.targets.pixels import PatchPixels
from vitral.tasks.task import BaseTask, Outcome, Reconstruction, Task, batch_mean, full_precision

TargetConfig = Annotated[PatchCodes | PatchPixels | Hog | TeacherFeatures, OpenUnion()]


class Beit(BaseTask):
    """Hide blocks of patches and predict their targets from all tokens."""

    labeled: ClassVar[bool] = False
    best_by = "loss"
    trains = "masked_patches"

    kind: Literal["beit"] = "beit"
    ratio: float = Field(default=75 / 196, gt=0, lt=1)  # of the patches that are hidden
    least: int = Field(default=16, ge=1)  # patches of a block, unless fewer are left to hide
    target: TargetConfig = PatchCodes()

    def check(self, model: Config) -> None:
        check_plain_patches(model, self.kind)
        assert isinstance(model, Vit)
        grid = model.layout(model.image_size).grid
        if not 0 < self.hidden_patches(grid) < grid.cells():
            message = f"{self.hidden_patches(grid)} of {grid.cells()} patches would be hidden"
            raise ConfigError(message, code="config.out_of_range", where="ratio", hint="use a ratio such as 0.4")
        try:
            self.target.check(model)
        except ConfigError as error:
            raise error.within("target") from None

    def hidden_patches(self, grid: Grid) -> int:
        """How many patches are hidden."""
        return round(self.ratio * grid.cells())

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with plain patches. Labels are not used. Pool and head are frozen."""
        self.check(model.config)
        assert isinstance(model, VisionTransformer)
        return MaskedImageModeling(self, model, normalize)


class MaskedImageModeling(Task):
    """Adds a mask token and a linear prediction of the target to the model.

    The loss of an image is the mean over its hidden patches. In evaluation mode the same patches of all images are
    hidden, so that losses are reproducible.
    """

    model: VisionTransformer

    def __init__(self, config: Beit, model: VisionTransformer, normalize: Normalize) -> None:
        super().__init__()
        self.config, self.normalize, self.model = config, normalize, model
        self.patch = model.config.token_size()
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        device = next(model.parameters()).device
        self.mask_token = build_mask_token(model)
        self.target = config.target.build(model, normalize).to(device)
        self.predict = nn.Linear(model.config.width, self.target.outputs, device=device)
        initialize_linear(self.predict)
        self.fit_images = self.target.fit_images

    def fit_buffers(self, images: Tensor, rng: np.random.Generator) -> None:
        self.target.fit(images, rng)

    def end_step(self, done: float) -> None:
        self.target.follow(self.model, done)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        hidden = self.draw_hidden(images, rng)
        encoded = encode_masked(self.model, images, hidden, self.mask_token)
        targets = self.target(images)  # (B, N, ...)
        losses = hidden_mean(self.target.losses(full_precision(self.predict(encoded)), targets), hidden)  # (B,)
        spread = feature_std(encoded.mean(dim=1), self.collective)
        return Outcome(batch_mean(losses), len(images), {"feature_std": spread})

    def draw_hidden(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Which patches of each image are hidden, (B, N)."""
        grid, blocks = self.model.layout(images).grid, Blocks(least=self.config.least)
        count = self.config.hidden_patches(grid)
        if self.training:
            return draw_block_masks(rng, grid, [count] * len(images), blocks).to(images.device)
        fixed = draw_block_masks(np.random.Generator(np.random.Philox(0)), grid, [count], blocks)
        return fixed.expand(len(images), -1).to(images.device)

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        hidden = self.draw_hidden(images, np.random.Generator(np.random.Philox(0)))
        outputs = full_precision(self.predict(encode_masked(self.model, images, hidden, self.mask_token)))
        drawn = self.target.draw(outputs, cut_patches(images, self.patch))
        if drawn is None:
            return None
        predicted = join_patches(drawn, self.model.layout(images).grid, self.patch)
        return picture_hidden(self.normalize.restore(images), self.normalize.restore(predicted), hidden, self.patch)
