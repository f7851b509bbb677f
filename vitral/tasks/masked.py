"""Masked patches: the paper's self-supervision (appendix B.1.2), which needs no labels.

B images, C channels, N patches, M of them corrupted, P x Q pixels a patch, D width.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitral.config import Config
from vitral.data.transforms.scaling import Scaling
from vitral.errors import ConfigError
from vitral.model.contract import Model
from vitral.model.patches import Patches, cut_patches
from vitral.model.shapes import Grid, split_tokens
from vitral.model.vit import VisionTransformer
from vitral.tasks.corruption import Corruption, corrupt, draw_corruption, take
from vitral.tasks.targets import MeanColour, TargetConfig
from vitral.tasks.task import Outcome, Task, mean_of


class MaskedPatches(Config):
    """Hide half of the patches and have them told from the rest."""

    labelled: ClassVar[bool] = False

    kind: Literal["masked"] = "masked"
    target: TargetConfig = MeanColour()

    def build(self, model: Model, classes: int, class_counts: Sequence[int], scaling: Scaling) -> Task:
        """The task for a model with a stem of plain patches.

        The scaling is that of the images: colours are found in the bytes behind them. Labels are not looked at.
        The model's own pool and head learn nothing here, so they are frozen.
        """
        if not isinstance(model, VisionTransformer) or not isinstance(model.config.stem, Patches):
            found = "ResNet" if not isinstance(model, VisionTransformer) else "hybrid stem"
            raise ConfigError(
                f"masked patches need a model of plain patches, got a {found}",
                code="config.unsupported",
                where="task",
                remedy="choose a model such as S/16",
            )
        refuse_single(model.config.stem.grid(model.config.image))
        self.target.check(model.config.channels, model.config.stem.patch)
        return PatchPrediction(self, model, model.config.stem, scaling)


def refuse_single(grid: Grid) -> None:
    if grid.cells() < 2:
        raise ConfigError(
            "a patch is told from the others, but the image is one patch",
            code="config.unsupported",
            where="image",
            remedy="use larger images or smaller patches",
        )


class PatchPrediction(Task):
    """The mask token and the linear map that tells a patch are the task's; the model's weights serve any other task.

    In evaluation mode all images are corrupted alike, always at the same places, so that an image costs the same
    whatever its batch.
    """

    model: VisionTransformer

    def __init__(self, config: MaskedPatches, model: VisionTransformer, stem: Patches, scaling: Scaling) -> None:
        super().__init__()
        self.config, self.patch, self.scaling = config, stem.patch, scaling
        self.model = model
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        width, place = model.config.width, next(model.parameters()).device
        self.mask = nn.Parameter(torch.empty(width, device=place))
        self.tell = nn.Linear(width, config.target.outputs(model.config.channels, stem.patch), device=place)
        nn.init.normal_(self.mask, std=0.02)
        nn.init.normal_(self.tell.weight, std=0.02)  # not zero, or the model would learn nothing at the first step
        nn.init.zeros_(self.tell.bias)

    def forward(self, images: Tensor, labels: Tensor, dice: np.random.Generator) -> Outcome:
        layout = self.model.layout(images)
        refuse_single(layout.grid)
        corruption = self.corruption(len(images), layout.grid.cells(), dice, images.device)
        patches = corrupt(self.model.stem(images), corruption, self.mask)  # (B, N, D)
        tokens = self.model.encode(self.model.sequence(patches, layout), layout, layout.length())  # (B, L, D)
        seen = take(split_tokens(tokens, layout).patches, corruption.places)  # (B, M, D)
        truth = take(cut_patches(images, self.patch), corruption.places)  # (B, M, C P Q)
        pixels = truth.unflatten(2, (images.shape[1], *self.patch))  # (B, M, C, P, Q)
        losses, metrics = self.config.target.judge(self.tell(seen).float(), pixels, self.scaling)
        means = {name: mean_of(values) for name, values in metrics.items()}
        return Outcome(mean_of(losses), len(images), means)

    def corruption(self, images: int, patches: int, dice: np.random.Generator, device: torch.device) -> Corruption:
        if self.training:
            return Corruption(*(part.to(device) for part in draw_corruption(images, patches, dice)))
        always = draw_corruption(1, patches, np.random.Generator(np.random.Philox(0)))
        return Corruption(*(part.expand(images, -1).to(device) for part in always))
