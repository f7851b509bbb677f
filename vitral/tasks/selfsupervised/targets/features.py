"""Features of an averaged teacher as targets, as in data2vec (arXiv 2202.03555).  B images, N patches, D width."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.selfsupervised.schedules import ConstantMomentum, MomentumConfig
from vitral.tasks.selfsupervised.targets.target import BaseTarget, Target
from vitral.tasks.selfsupervised.teacher import Teacher
from vitral.tasks.task import full_precision


class TeacherFeatures(BaseTarget):
    """The mean of the last layers of a teacher that is given the whole image, by a smooth L1 distance."""

    kind: Literal["features"] = "features"
    layers: int = Field(default=6, ge=1)  # the last ones, whose normalized outputs are averaged
    beta: float = Field(default=2.0, gt=0)  # below this distance the loss is squared
    momentum: MomentumConfig = ConstantMomentum(start=0.9998)

    def check(self, model: Vit) -> None:
        if self.layers > model.depth:
            message = f"the target is the mean of {self.layers} layers, and the model has {model.depth}"
            raise ConfigError(message, code="config.out_of_range", where="layers", hint=f"use at most {model.depth}")

    def build(self, model: VisionTransformer, normalize: Normalize) -> Target:
        return LayerFeatures(self, model)


class LayerFeatures(Target):
    def __init__(self, config: TeacherFeatures, model: VisionTransformer) -> None:
        super().__init__()
        self.config, self.outputs = config, model.config.width
        self.teacher = Teacher(model, nn.Identity())

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        found = self.teacher.model.forward_intermediates(images, range(-self.config.layers, 0))
        layers = [F.layer_norm(full_precision(each.patches), (self.outputs,)) for each in found]  # each (B, N, D)
        return F.layer_norm(torch.stack(layers).mean(dim=0), (self.outputs,))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.smooth_l1_loss(outputs, targets, beta=self.config.beta, reduction="none").mean(dim=2)

    def follow(self, model: VisionTransformer, done: float) -> None:
        self.teacher.follow(self.config.momentum.value(done), model, self.teacher.head)
