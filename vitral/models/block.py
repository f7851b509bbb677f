"""Encoder blocks: a token mixer and an MLP, each on a residual branch; gradient checkpointing.

B images, L tokens, D width.  A block returns its first `keep` tokens: in the last layer only those that are pooled.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitral.core.config import Config, OpenUnion
from vitral.models.base import BuildContext, Layout
from vitral.models.init import BaseInit, InitModule


class KeepActivations(Config):
    """Keep all activations for the backward pass: the fastest."""

    kind: Literal["keep"] = "keep"

    def run(self, block: nn.Module, x: Tensor, layout: Layout, keep: int) -> Tensor:
        return block(x, layout, keep)


class GradientCheckpointing(Config):
    """Keep only each block's input and recompute the rest: less memory for a third more compute."""

    kind: Literal["recompute"] = "recompute"

    def run(self, block: nn.Module, x: Tensor, layout: Layout, keep: int) -> Tensor:
        if not torch.is_grad_enabled() or torch.compiler.is_exporting():
            return block(x, layout, keep)
        return checkpoint(block, x, layout, keep, use_reentrant=False)


MemoryConfig = Annotated[KeepActivations | GradientCheckpointing, OpenUnion()]


class NoScale(Config):
    """Branches are added unscaled."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


class LayerScale(Config):
    """Branches are scaled by a learned factor per channel (arXiv 2103.17239)."""

    kind: Literal["layer_scale"] = "layer_scale"
    init: float = 1e-5

    def build(self, width: int) -> nn.Module:
        return ChannelScale(width, self.init)


ScaleConfig = Annotated[NoScale | LayerScale, OpenUnion()]


class ChannelScale(InitModule):
    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.factor = nn.Parameter(torch.empty(width))

    def initialize(self, init: BaseInit) -> None:
        nn.init.constant_(self.factor, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): drop the branch of a sample at this rate, and rescale the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        survives = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.rate)  # (B, 1, 1)
        return x * survives / (1 - self.rate)


class BaseBlock(Config):
    """Where the norms are, and how branches are scaled and dropped."""

    final_norm: ClassVar[bool]
    scale: ScaleConfig = NoScale()
    drop_path_rate: float = Field(default=0.0, ge=0, lt=1)  # of the last layer; it grows linearly from 0 in the first


class Branch(nn.Module):
    """Scales and drops a branch before it is added."""

    def __init__(self, config: BaseBlock, context: BuildContext, layer: int) -> None:
        super().__init__()
        self.scale = config.scale.build(context.width)
        self.drop = DropPath(config.drop_path_rate * layer / max(1, context.depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.scale(x))


class EncoderBlock(nn.Module):
    """The modules of a block; subclasses define `forward`."""

    def __init__(self, config: BaseBlock, context: BuildContext, layer: int, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(context.width, context.eps)
        self.mixer = mixer
        self.mixer_branch = Branch(config, context, layer)
        self.mlp_norm = nn.LayerNorm(context.width, context.eps)
        self.mlp = mlp
        self.mlp_branch = Branch(config, context, layer)


class PreNorm(BaseBlock):
    """Norm before each branch and after the last layer, as in the paper."""

    kind: Literal["pre"] = "pre"
    final_norm: ClassVar[bool] = True

    def build(self, context: BuildContext, layer: int, mixer: nn.Module, mlp: nn.Module) -> nn.Module:
        return PreNormBlock(self, context, layer, mixer, mlp)


class PreNormBlock(EncoderBlock):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        gathered = self.mixer(self.mixer_norm(x), layout, keep)
        x = x[:, :keep] + self.mixer_branch(gathered)  # eq. 2
        return x + self.mlp_branch(self.mlp(self.mlp_norm(x)))  # eq. 3


class PostNorm(BaseBlock):
    """Norm after each residual sum and none at the end, as in the original Transformer."""

    kind: Literal["post"] = "post"
    final_norm: ClassVar[bool] = False

    def build(self, context: BuildContext, layer: int, mixer: nn.Module, mlp: nn.Module) -> nn.Module:
        return PostNormBlock(self, context, layer, mixer, mlp)


class PostNormBlock(EncoderBlock):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        gathered = self.mixer(x, layout, keep)
        x = self.mixer_norm(x[:, :keep] + self.mixer_branch(gathered))
        return self.mlp_norm(x + self.mlp_branch(self.mlp(x)))


BlockConfig = Annotated[PreNorm | PostNorm, OpenUnion()]
