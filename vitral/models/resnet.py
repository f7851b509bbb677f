"""ResNet (BiT) of the paper, with GroupNorm and weight standardization: the baseline and the body of hybrids.

B images, H x W pixels, C channels, N = R x S cells of the last feature map, D width.
Padding is TensorFlow's SAME, as in the original.
"""

from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.models.base import Features, Grid, Layout, Model, check_images, patch_grid, split_tokens
from vitral.models.head import HeadConfig, LinearHead
from vitral.models.init import BaseInit, InitConfig, InitModule, Original, allocate, initialize

GROUPS = 32
Standardization = Literal["std", "variance"]


def standardize(weight: Tensor, how: Standardization = "std") -> Tensor:
    """Kernels (out, in, k, k) of mean 0 and std 1; Google adds epsilon to the std, timm to the variance."""
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
    scale = 1 / (variance.sqrt() + 1e-5) if how == "std" else (variance + 1e-8).rsqrt()
    return (weight - mean) * scale


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """SAME padding: a strided window gives ceil(size / stride) outputs; an odd pixel is padded below and right."""
    down, right = (max(0, (-(-size // stride) - 1) * stride + kernel - size) for size in x.shape[-2:])
    return F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2), value=value)


class StdConv2d(InitModule):
    """A convolution without bias and with weight standardization."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, how: Standardization) -> None:
        super().__init__()
        self.kernel, self.stride, self.how = kernel, stride, how
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))

    def initialize(self, init: BaseInit) -> None:
        init.convolution(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(pad_same(x, self.kernel, self.stride), standardize(self.weight, self.how), stride=self.stride)


Layers = tuple[Annotated[int, Field(ge=1, le=1_000)], ...]


class BaseResnet(Config):
    """Units in each stage, and the channels of the root: 64 in R50x1, 128 in R50x2."""

    layers: Layers = (3, 4, 6, 3)
    root: int = Field(default=64, ge=32, le=10_000)
    standardization: Standardization = "std"
    group_eps: float = Field(default=1e-6, gt=0)

    @model_validator(mode="after")
    def groups_divide(self) -> Self:
        if self.root % GROUPS:
            message = f"the {GROUPS} groups of GroupNorm do not divide {self.root} channels"
            hint = f"use a multiple of {GROUPS}: 64 in R50x1, 128 in R50x2"
            raise ConfigError(message, code="config.indivisible", where="root", hint=hint)
        return self

    def stride(self) -> int:
        """Pixels per side of a cell of the last feature map."""
        return 4 * 2 ** max(0, len(self.layers) - 1)

    def out_channels(self) -> int:
        """Channels of the last feature map."""
        return self.root * (2 ** (len(self.layers) + 1) if self.layers else 1)

    def token_size(self) -> Size:
        """The pixels that one token covers."""
        return Size(self.stride(), self.stride())

    def grid(self, image: Size) -> Grid:
        return patch_grid(image, self.token_size(), "cells of the feature map")


def conv_norm(config: BaseResnet, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = StdConv2d(inputs, outputs, kernel, stride, config.standardization)
    return nn.Sequential(conv, nn.GroupNorm(GROUPS, outputs, config.group_eps))


class Bottleneck(InitModule):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; ReLU after the sum."""

    def __init__(self, config: BaseResnet, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        changes = stride != 1 or inputs != 4 * inner
        self.shortcut = conv_norm(config, inputs, 4 * inner, 1, stride) if changes else nn.Identity()
        self.reduce = conv_norm(config, inputs, inner, 1)
        self.look = conv_norm(config, inner, inner, 3, stride)
        self.expand = conv_norm(config, inner, 4 * inner, 1)

    def initialize(self, init: BaseInit) -> None:
        norm = self.expand[1]
        assert isinstance(norm, nn.GroupNorm)
        nn.init.zeros_(norm.weight)  # every block starts as its shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.look(self.reduce(x).relu()).relu()
        return (self.shortcut(x) + self.expand(y)).relu()


def build_stages(config: BaseResnet) -> nn.Sequential:
    inputs, stages = config.root, []
    for index, units in enumerate(config.layers):
        inner = config.root * 2**index
        first = Bottleneck(config, inputs, inner, stride=2 if index else 1)
        inputs = 4 * inner
        stages.append(nn.Sequential(first, *(Bottleneck(config, inputs, inner, 1) for _ in range(units - 1))))
    return nn.Sequential(*stages)


class ResnetBody(nn.Module):
    """Images (B, C, H, W) to the last feature map (B, D, R, S)."""

    def __init__(self, config: BaseResnet, channels: int) -> None:
        super().__init__()
        self.root = conv_norm(config, channels, config.root, 7, stride=2)
        self.stages = build_stages(config)

    def forward(self, images: Tensor) -> Tensor:
        x = self.root(images).relu()  # (B, root, H/2, W/2)
        x = F.max_pool2d(pad_same(x, 3, 2, float("-inf")), 3, stride=2)  # (B, root, H/4, W/4)
        return self.stages(x)  # (B, D, R, S)


class Resnet(BaseResnet):
    """A ResNet (BiT). The default is R50x1."""

    kind: Literal["resnet"] = "resnet"
    image_size: Size = Size(224, 224)
    channels: int = Field(default=3, ge=1, le=10_000)
    head: HeadConfig = LinearHead()
    init: InitConfig = Original()

    @model_validator(mode="after")
    def image_divides(self) -> Self:
        self.grid(self.image_size)
        return self

    def layout(self, image: Size) -> Layout:
        """The sequence for an image of this size: the cells of the last feature map."""
        return Layout(0, 0, self.grid(image))

    def build_empty(self, device: str = "meta") -> "ResidualNetwork":
        """The model without weight values: for its shapes, or to load weights into."""
        with torch.device(device):
            return ResidualNetwork(self)

    def build(self) -> "ResidualNetwork":
        """The model with initialized weights."""
        return initialize(allocate(self.build_empty(), torch.get_default_device()), self.init)


class ResidualNetwork(Model):
    """A ResNet with the interface of a Vision Transformer: cells of the last map are its patches, mean-pooled."""

    config: Resnet

    def __init__(self, config: Resnet) -> None:
        super().__init__()
        self.config = config
        self.body = ResnetBody(config, config.channels)
        self.head = config.head.build(config.out_channels())

    def forward_features(self, images: Tensor) -> Features:
        layout = self.config.layout(check_images(images, self.config.channels))
        return split_tokens(self.body(images).flatten(2).mT, layout)  # patches (B, N, D)

    def forward_pooled(self, images: Tensor) -> Tensor:
        return self.forward_features(images).patches.mean(dim=1)  # (B, D)
