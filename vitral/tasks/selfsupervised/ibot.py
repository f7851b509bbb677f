"""iBOT: DINO, and the teacher's outputs for masked patches predicted by the student (arXiv 2111.07832; DINOv2).

B images, V views of each, two of them large, N patches, M masked patches of all images, K outputs, D width.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.core.rng import image_rngs
from vitral.data.loading.loader import BatchImages
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Grid, Model, split_tokens
from vitral.models.vit import VisionTransformer
from vitral.tasks.selfsupervised.dino import (
    COLLAPSE,
    GLOBAL,
    Centering,
    DinoOutputs,
    TargetsConfig,
    cross_view_losses,
    distillation_metrics,
)
from vitral.tasks.selfsupervised.masking import Blocks, check_maskable, draw_block_mask
from vitral.tasks.selfsupervised.projection import DinoHead, WeightNormLinear, pooled_width
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
    Task,
    batch_mean,
    full_precision,
    view_groups,
)

KOLEO_EPS = 1e-8


class SharedPatchHead(Config):
    """Patches have the outputs of the class token: the same weights, as in iBOT."""

    kind: Literal["shared"] = "shared"

    def build(self, width: int, outputs: DinoOutputs) -> "TokenHead":
        """The head of class tokens and patches."""
        return TokenHead(dino_head(width, outputs), None)


class OwnPatchLayer(Config):
    """Patches have a last layer of their own, after the same hidden layers: iBOT with `--shared_head false`."""

    kind: Literal["own_layer"] = "own_layer"
    outputs: int = Field(default=8192, ge=2, le=10_000_000)

    def build(self, width: int, outputs: DinoOutputs) -> "TokenHead":
        """The head of class tokens and patches."""
        last = WeightNormLinear(outputs.bottleneck, self.outputs, outputs.frozen_length)
        return TokenHead(dino_head(width, outputs), PatchLayer(last))


class SeparatePatchHead(Config):
    """Patches have a head of their own, as in DINOv2 for large models."""

    kind: Literal["separate"] = "separate"
    head: DinoOutputs = DinoOutputs()

    def build(self, width: int, outputs: DinoOutputs) -> "TokenHead":
        """The head of class tokens and patches."""
        return TokenHead(dino_head(width, outputs), dino_head(width, self.head))


PatchHeadConfig = Annotated[SharedPatchHead | OwnPatchLayer | SeparatePatchHead, OpenUnion()]


def dino_head(width: int, outputs: DinoOutputs) -> DinoHead:
    """The head of these settings for features of this width."""
    return DinoHead(width, outputs.hidden, outputs.bottleneck, outputs.outputs, outputs.frozen_length)


class PatchLayer(nn.Module):
    """The last layer of patches, on the hidden layers of another head."""

    def __init__(self, last: WeightNormLinear) -> None:
        super().__init__()
        self.last = last


class TokenHead(nn.Module):
    """The heads of pooled features and of patches, which may be one."""

    def __init__(self, pooled: DinoHead, patches: DinoHead | PatchLayer | None) -> None:
        super().__init__()
        self.pooled, self.patches = pooled, patches

    @property
    def patch_outputs(self) -> int:
        """The number of outputs of a patch."""
        return (self.patches or self.pooled).last.out_features

    def forward(self, features: Tensor) -> Tensor:
        """The outputs (rows, K) of pooled features (rows, D)."""
        return self.pooled(features)

    def of_patches(self, patches: Tensor) -> Tensor:
        """The outputs (rows, K) of patches (rows, D)."""
        if isinstance(self.patches, PatchLayer):
            return self.patches.last(self.pooled.points(patches))
        return (self.patches or self.pooled)(patches)


class PatchMasks(Config):
    """Each large view has no masked patches, or blocks of them (2111.07832, 3.3)."""

    probability: float = Field(default=0.5, ge=0, le=1)  # of masking a view at all
    least: float = Field(default=0.1, ge=0, lt=1)  # fraction of the patches
    most: float = Field(default=0.5, gt=0, lt=1)

    @model_validator(mode="after")
    def range_is_one(self) -> Self:
        if self.least > self.most:
            message, hint = f"{self.least:g} is more than most={self.most:g}", f"use at most {self.most:g}"
            raise ConfigError(message, code="config.conflict", where="least", hint=hint)
        return self

    def draw(self, rng: np.random.Generator, grid: Grid) -> NDArray[np.bool_]:
        """The mask of a view (N,), true where a patch is masked."""
        masked, ratio = rng.random() < self.probability, rng.uniform(self.least, self.most)
        return self._blocks(rng, grid, ratio if masked else 0.0)

    def fixed(self, grid: Grid) -> NDArray[np.bool_]:
        """The mask (N,) of every view in evaluation."""
        return self._blocks(np.random.Generator(np.random.Philox(0)), grid, (self.least + self.most) / 2)

    def _blocks(self, rng: np.random.Generator, grid: Grid, ratio: float) -> NDArray[np.bool_]:
        blocks = Blocks(least=(min(grid) // 3) ** 2)
        return draw_block_mask(rng, grid, int(ratio * grid.cells()), blocks).reshape(-1)


class Ibot(BaseTask):
    """Predict the teacher's outputs for another view, and for the masked patches of the same view."""

    labeled: ClassVar[bool] = False
    best_by = "last"
    trains = "features"
    views: ClassVar[int] = 2
    collapse: ClassVar[tuple[CollapseSign, ...]] = COLLAPSE

    kind: Literal["ibot"] = "ibot"
    head: DinoOutputs = DinoOutputs(outputs=8192)
    patch_head: PatchHeadConfig = SharedPatchHead()
    masks: PatchMasks = PatchMasks()
    targets: TargetsConfig = Centering()
    momentum: MomentumConfig = CosineMomentum()
    student_temperature: Temperature = 0.1
    teacher_temperature: TemperatureConfig = WarmupTemperature()
    patch_temperature: TemperatureConfig = WarmupTemperature()  # of the teacher's outputs for patches
    view_weight: float = Field(default=1.0, ge=0)  # of the loss between views
    patch_weight: float = Field(default=1.0, ge=0)  # of the loss of masked patches
    koleo: float = Field(default=0.0, ge=0)  # weight of the KoLeo loss, which spreads features: 0.1 in DINOv2
    frozen_last_layer: float = Field(default=0.01, ge=0, le=1)  # fraction of the run in which it is not trained
    saved: Literal["teacher", "student"] = "teacher"  # whose features are used

    def check(self, model: Config) -> None:
        check_maskable(model, self.kind)

    def batch_dependence(self) -> str:
        if self.koleo:
            return "KoLeo compares each image with its nearest neighbor in the batch"
        return self.targets.batch_dependence()

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model with plain patches. Labels are not used."""
        self.check(model.config)
        assert isinstance(model, VisionTransformer)
        return MaskedSelfDistillation(self, model)


class EncodedViews(NamedTuple):
    """What a model makes of views."""

    pooled: Tensor  # (B, D)
    patches: Tensor  # (B, N, D)


class MaskedSelfDistillation(Task):
    """Adds heads and a mask token to the model, and a teacher, which sees no masks.

    In evaluation mode the same patches of all images are masked, so that losses are reproducible.
    """

    model: VisionTransformer

    def __init__(self, config: Ibot, model: VisionTransformer) -> None:
        super().__init__()
        self.config, self.model = config, model
        self.bundled = "teacher.model" if config.saved == "teacher" else "model"
        model.head.requires_grad_(False)
        self.mask = nn.Parameter(torch.zeros(model.config.width))  # as the authors' starts
        self.head = config.patch_head.build(pooled_width(model), config.head)
        self.teacher = Teacher(model, self.head)
        self.targets = config.targets.build(config.head.outputs)
        self.patch_targets = config.targets.build(self.head.patch_outputs)
        self.to(next(model.parameters()).device)
        self.begin_step(0.0)

    def begin_step(self, done: float) -> None:
        self.temperature = self.config.teacher_temperature.value(done)
        self.patch_temperature = self.config.patch_temperature.value(done)
        self.trains_last_layer = done >= self.config.frozen_last_layer

    def filter_gradients(self) -> None:
        if not self.trains_last_layer:
            for module in self.head.modules():
                if isinstance(module, WeightNormLinear):
                    for weight in module.parameters():
                        weight.grad = None

    def end_step(self, done: float) -> None:
        self.teacher.follow(self.config.momentum.value(done), self.model, self.head)
        self.targets.end_step()
        self.patch_targets.end_step()

    def forward(self, images: BatchImages, labels: Tensor, rng: np.random.Generator) -> Outcome:
        groups, count = view_groups(images, GLOBAL), len(labels)
        large = groups[0][:, :GLOBAL].flatten(0, 1)  # (2 B, C, H, W)
        small = [each for each in (groups[0][:, GLOBAL:], *groups[1:]) if each.shape[1]]
        drawn = self.draw_masks(count, self.model.layout(large).grid, rng)  # (2 B, N)
        # Which patches are masked is known on the host: nothing waits for the device to count them.
        masks, places = (torch.from_numpy(each).to(large.device) for each in (drawn, np.flatnonzero(drawn)))
        student = self.encode(self.model, large, masks)
        pooled = [student.pooled, *(self.model.forward_pooled(each.flatten(0, 1)) for each in small)]
        views = [GLOBAL, *(each.shape[1] for each in small)]
        outputs = [
            full_precision(self.head(each)).unflatten(0, (count, v)) for each, v in zip(pooled, views, strict=True)
        ]
        logs = self.log_softmax(torch.cat(outputs, dim=1))  # (B, V, K)
        with torch.no_grad():
            taught = self.encode(self.teacher.model, large, None)
            targets = self.targets(full_precision(self.teacher.head(taught.pooled)), self.temperature)
            targets = targets.unflatten(0, (count, GLOBAL))  # (B, 2, K)
        between = batch_mean(cross_view_losses(targets, logs))
        within = batch_mean(self.patch_losses(student.patches, taught.patches, places))
        first, second = student.pooled.unflatten(0, (count, GLOBAL)).unbind(dim=1)  # each (B, D)
        loss = self.config.view_weight * between + self.config.patch_weight * within
        if self.config.koleo:
            spread = koleo_losses(first, self.collective) + koleo_losses(second, self.collective)  # (B,)
            loss = loss + self.config.koleo * batch_mean(spread)
        return Outcome(loss, count, distillation_metrics(targets, logs, first, self.collective))

    def log_softmax(self, outputs: Tensor) -> Tensor:
        """The student's log-probabilities of outputs (..., K)."""
        return (outputs / self.config.student_temperature).log_softmax(dim=-1)

    def encode(self, model: Model, images: Tensor, masks: Tensor | None) -> EncodedViews:
        """Encode views (B, C, H, W) of which some patches are replaced by the mask token."""
        assert isinstance(model, VisionTransformer)
        layout, patches = model.layout(images), model.stem(images)  # (B, N, D)
        if masks is not None:
            patches = torch.where(masks[..., None], self.mask.to(patches.dtype), patches)
        tokens = model.encode(model.embed_patches(patches, layout), layout, layout.length())  # (B, L, D)
        return EncodedViews(model.pool(tokens, layout), split_tokens(tokens, layout).patches)

    def draw_masks(self, images: int, grid: Grid, rng: np.random.Generator) -> NDArray[np.bool_]:
        """The masks of the large views (2 B, N), view by view of each image."""
        if not self.training:
            return np.tile(self.config.masks.fixed(grid), (GLOBAL * images, 1))
        drawn = [self.config.masks.draw(each, grid) for each in image_rngs(rng, images) for _ in range(GLOBAL)]
        return np.stack(drawn) if drawn else np.zeros((0, grid.cells()), dtype=np.bool_)

    def patch_losses(self, student: Tensor, taught: Tensor, places: Tensor) -> Tensor:
        """The loss of each image (B,): of its large views the mean cross-entropy over the masked patches.

        `places` (M,) are those of the masked patches among all patches of the views (2 B, N, D).
        """
        with torch.no_grad():
            targets = self.masked_targets(taught.flatten(0, 1), places)  # (M, K)
        logs = self.log_softmax(full_precision(self.head.of_patches(student.flatten(0, 1)[places])))  # (M, K)
        terms = -(targets * logs).sum(dim=-1)  # (M,)
        views, zeros = places // student.shape[1], terms.new_zeros(len(student))  # (M,), (2 B,)
        counts = zeros.index_add(0, views, torch.ones_like(terms))  # (2 B,)
        means = zeros.index_add(0, views, terms) / counts.clamp(min=1)
        return means.unflatten(0, (len(student) // GLOBAL, GLOBAL)).mean(dim=1)

    def masked_targets(self, taught: Tensor, places: Tensor) -> Tensor:
        """The targets (M, K) of the masked patches among the teacher's patches (2 B N, D)."""
        head, temperature = self.teacher.head, self.patch_temperature
        assert isinstance(head, TokenHead)
        if not self.patch_targets.needs_all:
            found: Tensor = self.patch_targets(full_precision(head.of_patches(taught[places])), temperature)
            return found
        whole: Tensor = self.patch_targets(full_precision(head.of_patches(taught)), temperature)
        return whole[places]


def koleo_losses(features: Tensor, collective: Collective) -> Tensor:
    """The loss of each image (B,): minus the logarithm of the distance to the nearest other image (arXiv 1806.03198).

    Features (B, D) are put on the unit sphere; the others are those of all processes.
    """
    points = F.normalize(full_precision(features), dim=1, eps=KOLEO_EPS)  # (B, D)
    others = collective.gather(points)  # (N, D)
    if not len(others):
        return points.sum(dim=1)
    similarity = (points @ others.mT).detach()  # (B, N)
    similarity[torch.arange(len(points)), collective.places(len(points))] = -1
    distances = (points - others[similarity.argmax(dim=1)] + KOLEO_EPS).norm(dim=1)  # (B,)
    return -(distances + KOLEO_EPS).log()
