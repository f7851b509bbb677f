"""The baseline: a ResNet (BiT) with the contract of a Vision Transformer.  B images, N = R x S places, D width."""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vitral.config import Size
from vitral.model.contract import Model, check_images
from vitral.model.head import HeadConfig, LinearHead
from vitral.model.initial import InitialConfig, Original, initialise
from vitral.model.resnet import BodyKind, cell
from vitral.model.shapes import Features, Grid, Layout, divide, split_tokens


class Resnet(BodyKind):
    """A ResNet (BiT) as one value. As it stands it is R50x1."""

    kind: Literal["resnet"] = "resnet"
    image: Size = Size(224, 224)
    channels: int = Field(default=3, ge=1, le=10_000)
    head: HeadConfig = LinearHead()
    initial: InitialConfig = Original()

    @model_validator(mode="after")
    def image_divides(self) -> Self:
        self.grid(self.image)
        return self

    def grid(self, image: Size) -> Grid:
        return divide(image, cell(self, Size(1, 1)), "cells of the map")

    def layout(self, image: Size) -> Layout:
        """The sequence that an image of this size becomes: the places of the last map."""
        return Layout(0, 0, self.grid(image))

    def skeleton(self, device: str = "meta") -> "ResidualNetwork":
        """The model with no values in its weights: for its shapes, or as a frame that loaded weights are put into."""
        with torch.device(device):
            return ResidualNetwork(self)

    def build(self) -> "ResidualNetwork":
        """The model with fresh weights."""
        model = self.skeleton().to_empty(device=torch.get_default_device())
        initialise(model, self.initial)
        return model


class ResidualNetwork(Model):
    """The mean of the last map answers; its places are the patches."""

    config: Resnet

    def __init__(self, config: Resnet) -> None:
        super().__init__()
        self.config = config
        self.body = config.build_body(config.channels)
        self.head = config.head.build(config.outputs())

    def features(self, images: Tensor) -> Features:
        layout = self.config.layout(check_images(images, self.config.channels))
        return split_tokens(self.body(images).flatten(2).mT, layout)  # patches (B, N, D)

    def pooled(self, images: Tensor) -> Tensor:
        return self.features(images).patches.mean(dim=1)  # (B, D)
