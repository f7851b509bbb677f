"""I-JEPA: predict the features of blocks of the image from those of the rest (arXiv 2301.08243).

B images, T target blocks of each, N patches, M of them in the context, P in a target; D width, d that of the predictor.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.attention import Attention
from vitral.models.base import Grid, Layout, Model, check_heads
from vitral.models.pool import MeanPool
from vitral.models.position import SinCos2d
from vitral.models.position.additive import sincos_2d
from vitral.models.vit import Tokens, VisionTransformer, Vit, build_blocks
from vitral.tasks.selfsupervised.collapse import effective_rank, feature_std
from vitral.tasks.selfsupervised.masking import PredictionBlocks, check_maskable, draw_prediction_blocks
from vitral.tasks.selfsupervised.projection import initialize_linear
from vitral.tasks.selfsupervised.schedules import LinearMomentum, MomentumConfig
from vitral.tasks.selfsupervised.teacher import Teacher
from vitral.tasks.task import BaseTask, CollapseSign, Collective, Outcome, Task, batch_mean, full_precision

SAME_FEATURES = "all images have the same features: lower the learning rate, warm up longer, or raise the momentum"


class Predictor(Config):
    """The predictor, which is thrown away after training. The defaults are the authors' for ViT-H."""

    width: int = Field(default=384, ge=1, le=100_000)
    depth: int = Field(default=12, ge=1, le=1_000)
    heads: int = Field(default=16, ge=1)


class Ijepa(BaseTask):
    """Predict the teacher's features of hidden blocks from the other patches. Images are only cropped."""

    labeled: ClassVar[bool] = False
    best_by = "last"  # the loss falls, and rises again while the features get better
    trains = "masked_patches"
    collapse: ClassVar[tuple[CollapseSign, ...]] = (CollapseSign("feature_std", "below", 0.005, SAME_FEATURES),)

    kind: Literal["ijepa"] = "ijepa"
    predictor: Predictor = Predictor()
    targets: int = Field(default=4, ge=1, le=100)  # blocks of each image
    momentum: MomentumConfig = LinearMomentum()
    saved: Literal["teacher", "student"] = "teacher"  # whose features are used

    def check(self, model: Config) -> None:
        check_maskable(model, self.kind)
        check_heads(self.predictor.width, self.predictor.heads, "task.predictor.heads")
        if self.predictor.width % 4:
            message = f"positions of the predictor need a width that 4 divides, got {self.predictor.width}"
            raise ConfigError(message, code="config.indivisible", where="predictor.width", hint="use 96, 192 or 384")
        assert isinstance(model, Vit)
        if min(model.layout(model.image_size).grid) < 2:
            message = "blocks are placed in a grid of at least 2x2 patches"
            hint = "use larger images or smaller patches"
            raise ConfigError(message, code="config.unsupported", where="image_size", hint=hint)

    def batch_dependence(self) -> str:
        return "the contexts of all images are cut to the smallest of the batch"

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with plain patches. Labels are not used. Pool and head are frozen."""
        self.check(model.config)
        assert isinstance(model, VisionTransformer)
        return JointEmbeddingPrediction(self, model)


def predictor_config(encoder: Vit, predictor: Predictor) -> Vit:
    """The predictor as a Vision Transformer: its blocks are used."""
    return Vit(
        image_size=encoder.image_size,
        channels=encoder.channels,
        width=predictor.width,
        depth=predictor.depth,
        stem=encoder.stem,
        tokens=Tokens(cls=False),
        position=SinCos2d(endpoint=False),
        mixer=Attention(heads=predictor.heads),
        mlp=encoder.mlp,
        pool=MeanPool(),
        norm=encoder.norm,
        eps=encoder.eps,
    )


class FeaturePredictor(nn.Module):
    """Encoded patches of the context (B, M, D) to the features of target blocks (T B, P, D)."""

    def __init__(self, encoder: Vit, settings: Predictor) -> None:
        super().__init__()
        config = predictor_config(encoder, settings)
        context = config.context()
        self.embed = nn.Linear(encoder.width, config.width)
        self.mask = nn.Parameter(torch.empty(1, 1, config.width))
        self.blocks = nn.ModuleList(build_blocks(config, context))
        self.norm = context.build_norm()
        self.predict = nn.Linear(config.width, encoder.width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                initialize_linear(module)
        nn.init.trunc_normal_(self.mask, std=0.02)

    def forward(self, encoded: Tensor, context: Tensor, targets: Tensor, grid: Grid) -> Tensor:
        """Of patches at the indices (B, M), those at the indices (T, B, P)."""
        tokens = self.embed(encoded)  # (B, M, d)
        table = sincos_2d(grid, tokens.shape[2], tokens, endpoint=False)  # (N, d)
        known = (tokens + table[context]).repeat(len(targets), 1, 1)  # (T B, M, d)
        asked = self.mask.to(tokens.dtype) + table[targets.flatten(0, 1)]  # (T B, P, d)
        whole = torch.cat([known, asked], dim=1)
        layout = Layout(cls=0, registers=0, grid=Grid(1, whole.shape[1]))
        for block in self.blocks:
            whole = block(whole, layout, layout.length())
        return self.predict(self.norm(whole[:, known.shape[1] :]))


class BatchBlocks(NamedTuple):
    """The patches of a batch by their indices."""

    context: Tensor  # (B, M)
    targets: Tensor  # (T, B, P)


class JointEmbeddingPrediction(Task):
    """Adds a predictor to the model, and a teacher of the model, which sees the whole image.

    In evaluation mode the same blocks of all images are predicted, so that losses are reproducible.
    """

    model: VisionTransformer

    def __init__(self, config: Ijepa, model: VisionTransformer) -> None:
        super().__init__()
        self.config, self.model = config, model
        self.bundled = "teacher.model" if config.saved == "teacher" else "model"
        for part in (model.pool, model.head):
            part.requires_grad_(False)
        self.predictor = FeaturePredictor(model.config, config.predictor)
        self.teacher = Teacher(model, nn.Identity())
        self.to(next(model.parameters()).device)

    def end_step(self, done: float) -> None:
        self.teacher.follow(self.config.momentum.value(done), self.model, self.teacher.head)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        layout = self.model.layout(images)
        context, targets = (each.to(images.device) for each in self.draw_blocks(len(images), layout.grid, rng))
        encoded = self.model.forward_kept(images, context)[:, layout.prefix() :]  # (B, M, D)
        predicted = full_precision(self.predictor(encoded, context, targets, layout.grid))  # (T B, P, D)
        with torch.no_grad():
            features = full_precision(self.teacher.model.forward_features(images).patches)  # (B, N, D)
            normal = F.layer_norm(features, features.shape[-1:])  # without weights
            truth = gather_blocks(normal, targets)  # (T B, P, D)
        losses = F.smooth_l1_loss(predicted, truth, reduction="none").mean(dim=(1, 2))  # (T B,)
        loss = batch_mean(losses.unflatten(0, (len(targets), len(images))).mean(dim=0))
        means = features.mean(dim=1)  # (B, D)
        spread, rank = feature_std(means, self.collective), effective_rank(means, self.collective)
        return Outcome(loss, len(images), {"feature_std": spread, "rank": rank})

    def draw_blocks(self, images: int, grid: Grid, rng: np.random.Generator) -> BatchBlocks:
        """The context and the targets of each image; the contexts are cut to the smallest of all processes."""
        if not self.training:
            fixed = draw_prediction_blocks(np.random.Generator(np.random.Philox(0)), 1, grid, self.config.targets)
            return stack_blocks(fixed * images, len(fixed[0].context), self.config.targets)
        drawn = draw_prediction_blocks(rng, images, grid, self.config.targets)
        least = smallest([len(each.context) for each in drawn], grid.cells(), self.collective)
        return stack_blocks(drawn, least, self.config.targets)


def smallest(counts: Sequence[int], most: int, collective: Collective) -> int:
    """The smallest of the counts of all processes, none of which is above `most`; 0 if there are none."""
    found = torch.bincount(torch.tensor(counts, dtype=torch.int64), minlength=most + 1).float()  # (most + 1,)
    present = collective.sum(found).nonzero()
    return int(present[0]) if len(present) else 0


def stack_blocks(drawn: Sequence[PredictionBlocks], context: int, targets: int) -> BatchBlocks:
    """The first so many patches of each context, and all of each target."""
    if not drawn:
        return BatchBlocks(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(targets, 0, 1, dtype=torch.int64))
    blocks: NDArray[np.int64] = np.stack([np.stack(each.targets) for each in drawn], axis=1)  # (T, B, P)
    kept = np.stack([each.context[:context] for each in drawn])  # (B, M)
    return BatchBlocks(torch.from_numpy(kept), torch.from_numpy(blocks))


def gather_blocks(features: Tensor, targets: Tensor) -> Tensor:
    """The features (T B, P, D) of patches (B, N, D) at the indices (T, B, P)."""
    index = targets[..., None].expand(-1, -1, -1, features.shape[2])  # (T, B, P, D)
    return features.expand(len(targets), -1, -1, -1).gather(2, index).flatten(0, 1)
