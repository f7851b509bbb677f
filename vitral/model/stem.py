"""From pixels to patch tokens: plain patches, or patches of a ResNet's map (the hybrid of section 3.1)."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from vitral.config import Size
from vitral.errors import ConfigError
from vitral.model.initial import Initial, Initialised
from vitral.model.patches import Patches, cut_patches
from vitral.model.resnet import BodyKind, Layers, cell
from vitral.model.shapes import Grid, Whole, divide


class Hybrid(BodyKind):
    """Patches of a ResNet's map, 1x1 as a rule.

    The paper's two forms: all four stages, (3, 4, 6, 3); or the fourth folded into the third for four times as many
    tokens, (3, 4, 9).
    """

    kind: Literal["hybrid"] = "hybrid"
    layers: Layers = (3, 4, 9)
    patch: Size = Size(1, 1)
    project: bool = True  # where the map has the model's width already, it may serve as it is

    def grid(self, image: Size) -> Grid:
        return divide(image, cell(self, self.patch), "cells of the map")

    def pixels(self) -> int:
        """Numbers in one patch of the map."""
        return self.outputs() * self.patch.height * self.patch.width

    def check(self, width: int) -> None:
        if not self.project and self.pixels() != width:
            raise ConfigError(
                f"without a projection the width must be the map's {self.pixels()}, but it is {width}",
                code="config.conflict",
                where="stem.project",
                remedy=f"set it to true, or width={self.pixels()}",
            )

    def build(self, channels: int, whole: Whole) -> "HybridStem":
        return HybridStem(self, channels, whole)


class HybridStem(Initialised):
    """Images (B, C, H, W) to patch tokens (B, N, D)."""

    def __init__(self, config: Hybrid, channels: int, whole: Whole) -> None:
        super().__init__()
        self.patch = config.patch
        self.body = config.build_body(channels)
        self.project = nn.Linear(config.pixels(), whole.width) if config.project else nn.Identity()

    def initialise(self, initial: Initial) -> None:
        if isinstance(self.project, nn.Linear):
            initial.dense(self.project)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(cut_patches(self.body(images), self.patch))  # (B, N, D)


StemConfig = Annotated[Patches | Hybrid, Field(discriminator="kind")]
