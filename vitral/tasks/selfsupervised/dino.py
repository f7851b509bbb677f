"""DINO: a student predicts the outputs of its own moving average for other views of the image (arXiv 2104.14294).

B images, V views of each, two of them large, K outputs, D width.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vitral.core.config import Config, OpenUnion
from vitral.data.loading.loader import BatchImages
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model
from vitral.tasks.selfsupervised.collapse import batch_entropy, effective_rank, feature_std, mean_entropy
from vitral.tasks.selfsupervised.projection import DinoHead, pooled_width
from vitral.tasks.selfsupervised.schedules import (
    CosineMomentum,
    MomentumConfig,
    Temperature,
    TemperatureConfig,
    WarmupTemperature,
)
from vitral.tasks.selfsupervised.teacher import Teacher
from vitral.tasks.task import (
    BaseTask,
    CollapseSign,
    Collective,
    Outcome,
    Synchronized,
    Task,
    batch_mean,
    full_precision,
    view_groups,
)

GLOBAL = 2  # views that the teacher is given


class Centering(Config):
    """Subtract a moving average of the teacher's outputs, so that no output is likely for all images."""

    kind: Literal["centering"] = "centering"
    momentum: float = Field(default=0.9, ge=0, lt=1)

    def batch_dependence(self) -> str:
        return ""

    def build(self, outputs: int) -> "Center":
        return Center(outputs, self.momentum)


class SinkhornKnopp(Config):
    """Make all outputs equally likely over the batch, in a few rounds (SwAV, arXiv 2006.09882; DINOv2)."""

    kind: Literal["sinkhorn"] = "sinkhorn"
    rounds: int = Field(default=3, ge=1)

    def batch_dependence(self) -> str:
        return "Sinkhorn-Knopp balances the outputs over the images of a batch"

    def build(self, outputs: int) -> "Sinkhorn":
        return Sinkhorn(self.rounds)


class TeacherTargets(Synchronized):
    """How outputs of the teacher become the distributions that the student is to predict."""

    needs_all: ClassVar[bool] = False  # whether it averages outputs that the student does not predict, too

    def forward(self, outputs: Tensor, temperature: float) -> Tensor:
        """The targets (rows, K) of outputs (rows, K), which are those of all views of the teacher."""
        raise NotImplementedError

    def end_step(self) -> None:
        """Called after a step."""


class Center(TeacherTargets):
    """A softmax of the outputs without their moving average, which a step changes after it has been used."""

    needs_all: ClassVar[bool] = True
    center: Tensor
    total: Tensor
    count: Tensor

    def __init__(self, outputs: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(outputs))
        # The sum and number of the outputs of the step at hand: of all its microbatches.
        self.register_buffer("total", torch.zeros(outputs), persistent=False)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, outputs: Tensor, temperature: float) -> Tensor:
        if self.training:
            self.total += outputs.sum(dim=0)
            self.count += len(outputs)
        return ((outputs - self.center) / temperature).softmax(dim=-1)

    @torch.no_grad()
    def end_step(self) -> None:
        total, count = self.collective.sum(self.total), self.collective.sum(self.count)
        self.center.lerp_(total / count.clamp(min=1), 1 - self.momentum)
        self.total.zero_()
        self.count.zero_()


class Sinkhorn(TeacherTargets):
    """A softmax whose rows sum to one and whose columns sum to nearly the same over the batch."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds

    def forward(self, outputs: Tensor, temperature: float) -> Tensor:
        return sinkhorn_knopp(outputs / temperature, self.rounds, self.collective)


def sinkhorn_knopp(logits: Tensor, rounds: int, collective: Collective) -> Tensor:
    """Distributions (rows, K) of logits (rows, K), balanced over the rows of all processes.

    Each round divides columns, then rows, by their sums.
    """
    weights = logits.exp()  # (rows, K)
    rows = collective.sum(weights.new_tensor(float(len(weights)))).clamp(min=1)
    weights = weights / collective.sum(weights.sum())
    for _ in range(rounds):
        weights = weights / collective.sum(weights.sum(dim=0)) / weights.shape[1]
        weights = weights / weights.sum(dim=1, keepdim=True) / rows
    return weights * rows


TargetsConfig = Annotated[Centering | SinkhornKnopp, OpenUnion()]


class DinoOutputs(Config):
    """The projection head, which is thrown away after training."""

    outputs: int = Field(default=65_536, ge=2, le=10_000_000)
    hidden: int = Field(default=2048, ge=1, le=100_000)
    bottleneck: int = Field(default=256, ge=1, le=100_000)
    frozen_length: bool = True  # of the rows of the last layer: steadier; the authors train it for ViT-S


UNIFORM = "the outputs are uniform: lower the teacher's temperature, or raise the learning rate"
ONE_OUTPUT = "all images have the same output: raise the teacher's temperature or momentum, or use targets=sinkhorn"
SAME_FEATURES = "all images have the same features: lower the learning rate, warm up longer, lower teacher_temperature"
COLLAPSE = (
    CollapseSign("teacher_entropy", "above", 0.9995, UNIFORM),
    CollapseSign("batch_entropy", "below", 0.02, ONE_OUTPUT),
    CollapseSign("feature_std", "below", 0.005, SAME_FEATURES),
)


class Dino(BaseTask):
    """Predict the teacher's outputs for one view of an image from another."""

    labeled: ClassVar[bool] = False
    best_by = "last"
    trains = "features"
    views: ClassVar[int] = 2
    collapse: ClassVar[tuple[CollapseSign, ...]] = COLLAPSE

    kind: Literal["dino"] = "dino"
    head: DinoOutputs = DinoOutputs()
    targets: TargetsConfig = Centering()
    momentum: MomentumConfig = CosineMomentum()
    student_temperature: Temperature = 0.1
    teacher_temperature: TemperatureConfig = WarmupTemperature()
    frozen_last_layer: float = Field(default=0.01, ge=0, le=1)  # fraction of the run in which it is not trained
    saved: Literal["teacher", "student"] = "teacher"  # whose features are used

    def batch_dependence(self) -> str:
        return self.targets.batch_dependence()

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for any model, whose pooled features are trained. Labels are not used."""
        return SelfDistillation(self, model)


class SelfDistillation(Task):
    """Adds a head to the model, and a teacher of both."""

    model: Model

    def __init__(self, config: Dino, model: Model) -> None:
        super().__init__()
        self.config, self.model = config, model
        self.bundled = "teacher.model" if config.saved == "teacher" else "model"
        model.head.requires_grad_(False)
        head = config.head
        self.head = DinoHead(pooled_width(model), head.hidden, head.bottleneck, head.outputs, head.frozen_length)
        self.teacher = Teacher(model, self.head)
        self.targets = config.targets.build(head.outputs)
        self.to(next(model.parameters()).device)
        self.temperature = config.teacher_temperature.value(0.0)
        self.trains_last_layer = True

    def begin_step(self, done: float) -> None:
        self.temperature = self.config.teacher_temperature.value(done)
        self.trains_last_layer = done >= self.config.frozen_last_layer

    def filter_gradients(self) -> None:
        if not self.trains_last_layer:
            for weight in self.head.last.parameters():
                weight.grad = None

    def end_step(self, done: float) -> None:
        self.teacher.follow(self.config.momentum.value(done), self.model, self.head)
        self.targets.end_step()

    def forward(self, images: BatchImages, labels: Tensor, rng: np.random.Generator) -> Outcome:
        groups = view_groups(images, GLOBAL)
        views = [group.flatten(0, 1) for group in groups]  # each (B V, C, H, W)
        features = [self.model.forward_pooled(each) for each in views]  # each (B V, D)
        outputs = torch.cat([self.project(each, group) for each, group in zip(features, groups, strict=True)], dim=1)
        with torch.no_grad():
            seen = groups[0][:, :GLOBAL].flatten(0, 1)  # (2 B, C, H, W)
            taught = full_precision(self.teacher(seen))  # (2 B, K)
            targets = self.targets(taught, self.temperature).unflatten(0, (len(labels), GLOBAL))  # (B, 2, K)
        logs = (outputs / self.config.student_temperature).log_softmax(dim=-1)  # (B, V, K)
        loss = batch_mean(cross_view_losses(targets, logs))
        first = features[0].unflatten(0, groups[0].shape[:2])[:, 0]  # (B, D)
        return Outcome(loss, len(labels), distillation_metrics(targets, logs, first, self.collective))

    def project(self, features: Tensor, group: Tensor) -> Tensor:
        """The outputs (B, V, K) of the features (B V, D) of a group of views."""
        return full_precision(self.head(features)).unflatten(0, group.shape[:2])


def distillation_metrics(targets: Tensor, logs: Tensor, features: Tensor, collective: Collective) -> dict[str, Tensor]:
    """How far the targets (B, 2, K), outputs (B, V, K) and features (B, D) are from collapse."""
    return {
        "teacher_entropy": mean_entropy(targets),
        "student_entropy": mean_entropy(logs.detach().exp()),
        "batch_entropy": batch_entropy(targets.flatten(0, 1), collective),
        "feature_std": feature_std(features, collective),
        "rank": effective_rank(features, collective),
    }


def cross_view_losses(targets: Tensor, logs: Tensor) -> Tensor:
    """The loss of each image (B,): the mean cross-entropy of targets (B, 2, K) with all other views (B, V, K)."""
    others = logs.sum(dim=1, keepdim=True) - logs[:, :GLOBAL]  # (B, 2, K): the sum over all views but this one
    terms = GLOBAL * (logs.shape[1] - 1)
    return -(targets * others).sum(dim=(1, 2)) / terms
