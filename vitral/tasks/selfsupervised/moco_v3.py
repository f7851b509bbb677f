"""MoCo v3: tell the other view of an image from those of all other images of the batch (arXiv 2104.02057).

B images, N of all processes, D width, d outputs of the projection.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitral.core.config import Config
from vitral.data.loading.loader import BatchImages
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model
from vitral.models.embed import Patches, PatchStem
from vitral.models.vit import VisionTransformer
from vitral.tasks.selfsupervised.collapse import effective_rank, feature_std
from vitral.tasks.selfsupervised.projection import batch_norm_mlp, pooled_width
from vitral.tasks.selfsupervised.schedules import CosineMomentum, MomentumConfig, Temperature
from vitral.tasks.selfsupervised.teacher import Teacher
from vitral.tasks.task import BaseTask, CollapseSign, Collective, Outcome, Task, batch_mean, full_precision, view_groups

VIEWS = 2


class MocoHead(Config):
    """The projection of three layers and the prediction of two, which are thrown away after training."""

    hidden: int = Field(default=4096, ge=1, le=100_000)
    outputs: int = Field(default=256, ge=1, le=100_000)


SAME_FEATURES = "all images have the same features: lower the learning rate, warm up longer, or raise the batch size"


class MocoV3(BaseTask):
    """Contrast two views of each image with those of all others in the batch."""

    labeled: ClassVar[bool] = False
    best_by = "last"
    trains = "features"
    views: ClassVar[int] = VIEWS
    collapse: ClassVar[tuple[CollapseSign, ...]] = (CollapseSign("feature_std", "below", 0.005, SAME_FEATURES),)

    kind: Literal["moco_v3"] = "moco_v3"
    head: MocoHead = MocoHead()
    temperature: Temperature = 0.2
    momentum: MomentumConfig = CosineMomentum(start=0.99)
    frozen_patches: bool = True  # the embedding of plain patches stays random: training is steadier

    def batch_dependence(self) -> str:
        return "each image is compared with all others of the batch"

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for any model, whose pooled features are trained. Labels are not used."""
        return MomentumContrast(self, model)


class MomentumContrast(Task):
    """Adds a projection and a prediction to the model, and a teacher of the model and the projection."""

    model: Model

    def __init__(self, config: MocoV3, model: Model) -> None:
        super().__init__()
        self.config, self.model = config, model
        if config.frozen_patches and isinstance(model, VisionTransformer) and isinstance(model.config.stem, Patches):
            assert isinstance(model.stem, PatchStem)
            model.stem.project.requires_grad_(False)
        model.head.requires_grad_(False)
        hidden, outputs = config.head.hidden, config.head.outputs
        self.projection = batch_norm_mlp([pooled_width(model), hidden, hidden, outputs], last_affine=False)
        self.prediction = batch_norm_mlp([outputs, hidden, outputs], last_affine=False)
        self.teacher = Teacher(model, self.projection)
        self.to(next(model.parameters()).device)

    def begin_step(self, done: float) -> None:
        # Before the keys are computed, as the authors do it.
        self.teacher.follow(self.config.momentum.value(done), self.model, self.projection)

    def forward(self, images: BatchImages, labels: Tensor, rng: np.random.Generator) -> Outcome:
        views = view_groups(images, VIEWS)[0][:, :VIEWS].unbind(dim=1)  # each (B, C, H, W)
        features = self.model.forward_pooled(torch.cat(views)).chunk(VIEWS)  # each (B, D)
        queries = [self.prediction(self.projection(each)) for each in features]  # each (B, d); norms of one view
        with torch.no_grad():
            taught = self.teacher.model.forward_pooled(torch.cat(views)).chunk(VIEWS)
            keys = [self.teacher.head(each) for each in taught]  # each (B, d)
        first = contrastive_losses(queries[0], keys[1], self.config.temperature, self.collective)
        second = contrastive_losses(queries[1], keys[0], self.config.temperature, self.collective)
        spread = feature_std(features[0], self.collective)
        metrics = {"feature_std": spread, "rank": effective_rank(features[0], self.collective)}
        return Outcome(batch_mean(first + second), len(labels), metrics)


def contrastive_losses(queries: Tensor, keys: Tensor, temperature: float, collective: Collective) -> Tensor:
    """The loss of each query (B,), whose key is the one of its own row among those of all processes."""
    q, k = (F.normalize(full_precision(each), dim=1) for each in (queries, keys))
    logits = q @ collective.gather(k).mT / temperature  # (B, N)
    own = collective.places(len(q)).to(q.device)  # (B,)
    return 2 * temperature * F.cross_entropy(logits, own, reduction="none")
