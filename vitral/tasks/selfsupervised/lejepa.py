"""LeJEPA: views of an image get equal features, and features of all images a normal distribution (arXiv 2511.08544).

B images, N of all processes, V views of each, G of them large, d outputs, S slices, T knots.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.core.rng import batch_rng
from vitral.data.loading.loader import BatchImages
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model
from vitral.tasks.selfsupervised.collapse import effective_rank, feature_std
from vitral.tasks.selfsupervised.projection import BatchNorm, pooled_width
from vitral.tasks.task import BaseTask, CollapseSign, Collective, Outcome, Task, full_precision, view_groups

GLOBAL = 2  # large views, whose mean all views are to equal
LAST_KNOT = 3.0
SAME_FEATURES = "all images have the same features: raise weight, or lower the learning rate"


class SigRegOutputs(Config):
    """The projection, which is thrown away after training."""

    hidden: int = Field(default=2048, ge=1, le=100_000)
    outputs: int = Field(default=128, ge=1, le=100_000)


class Lejepa(BaseTask):
    """Equal features for all views of an image, spread over images like a normal distribution; no teacher."""

    labeled: ClassVar[bool] = False
    best_by = "last"
    trains = "features"
    views: ClassVar[int] = 2
    collapse: ClassVar[tuple[CollapseSign, ...]] = (CollapseSign("feature_std", "below", 0.005, SAME_FEATURES),)

    kind: Literal["lejepa"] = "lejepa"
    head: SigRegOutputs = SigRegOutputs()
    weight: float = Field(default=0.05, ge=0, le=1)  # lambda: of the normal distribution; the rest is for equal views
    slices: int = Field(default=256, ge=1, le=100_000)  # random directions of a step
    knots: int = Field(default=17, ge=3, le=1_001)

    def batch_dependence(self) -> str:
        return "the features of the whole batch are compared with a normal distribution"

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for any model, whose pooled features are trained. Labels are not used."""
        return NormalEmbedding(self, model)


class NormalEmbedding(Task):
    """Adds a projection to the model. In evaluation mode the slices are always the same."""

    model: Model

    def __init__(self, config: Lejepa, model: Model) -> None:
        super().__init__()
        self.config, self.model = config, model
        model.head.requires_grad_(False)
        self.projection = projection(pooled_width(model), config.head)
        self.to(next(model.parameters()).device)

    def forward(self, images: BatchImages, labels: Tensor, rng: np.random.Generator) -> Outcome:
        groups, count = view_groups(images, GLOBAL), len(labels)
        features = [self.model.forward_pooled(group.flatten(0, 1)) for group in groups]  # each (B V, D)
        # One norm over all views, as the authors have it.
        projected = full_precision(self.projection(torch.cat(features)))  # (B V, d)
        parts = projected.split([len(each) for each in features])
        z = torch.cat([part.unflatten(0, group.shape[:2]) for part, group in zip(parts, groups, strict=True)], dim=1)
        views = z.transpose(0, 1)  # (V, B, d), the large ones first
        slices = self.draw_slices(rng, z.shape[2]).to(z)  # (d, S)
        with torch.autocast(z.device.type, enabled=False):  # the statistic is a small difference of large sums
            invariance = view_distance(views, self.collective)
            normality = sigreg(views, slices, self.config.knots, self.collective)
            loss = (1 - self.config.weight) * invariance + self.config.weight * normality
        first = features[0].unflatten(0, groups[0].shape[:2])[:, 0]  # (B, D)
        spread, rank = feature_std(first, self.collective), effective_rank(first, self.collective)
        return Outcome(loss, count, {"feature_std": spread, "rank": rank})

    def draw_slices(self, rng: np.random.Generator, outputs: int) -> Tensor:
        """Directions on the unit sphere (d, S), which all processes share."""
        shared = batch_rng(rng) if self.training else np.random.Generator(np.random.Philox(0))
        drawn = shared.standard_normal((outputs, self.config.slices))
        return torch.from_numpy(drawn / np.linalg.norm(drawn, axis=0))


def projection(width: int, settings: SigRegOutputs) -> nn.Sequential:
    """Three linear layers, the first two with batch norm and ReLU."""
    hidden = settings.hidden
    layers: list[nn.Module] = []
    for inputs in (width, hidden):
        layers += [nn.Linear(inputs, hidden), BatchNorm(hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, settings.outputs))


def view_distance(views: Tensor, collective: Collective) -> Tensor:
    """The mean squared distance of views (V, B, d) from the mean of the large ones, over all processes."""
    count = collective.sum(views.new_tensor(float(views.shape[1]))).clamp(min=1)
    squares = (views - views[:GLOBAL].mean(dim=0)).square().mean(dim=(0, 2))  # (B,)
    return collective.sum(squares.sum()) / count


def sigreg(views: Tensor, slices: Tensor, knots: int, collective: Collective) -> Tensor:
    """How far views (V, B, d) are from a normal distribution: the mean over views and slices (d, S) of their statistic.

    It is that of Epps and Pulley: the number of images times the weighted squared distance of the characteristic
    functions, by the trapezoid rule on [0, 3], doubled since they are symmetric; over the images of all processes.
    """
    points = torch.linspace(0, LAST_KNOT, knots, dtype=views.dtype, device=views.device)  # (T,)
    normal = (-points.square() / 2).exp()  # (T,)
    weights = 2 * LAST_KNOT / (knots - 1) * normal  # (T,)
    weights[0], weights[-1] = weights[0] / 2, weights[-1] / 2
    count = collective.sum(views.new_tensor(float(views.shape[1])))
    angles = (views @ slices)[..., None] * points  # (V, B, S, T)
    waves = torch.stack([angles.cos().sum(dim=1), angles.sin().sum(dim=1)])  # (2, V, S, T)
    real, imaginary = collective.sum(waves) / count.clamp(min=1)  # each (V, S, T)
    distances = (real - normal).square() + imaginary.square()
    return (distances @ weights).mean() * count
