"""Token mixers: attention, or its replacements in MetaFormer (arXiv 2111.11418).

B images, L tokens (prefix + N patches), R x S grid, D width.  A mixer returns the first `keep` tokens.
"""

from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.attention import Attention, Axial, Local
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.init import BaseInit, InitModule
from vitral.models.position import AttentionPosition


class BaseMixer(Config):
    """A mixer without attention."""

    mixes_prefix: ClassVar[bool] = False

    def check(self, context: BuildContext) -> None:
        """Raise ConfigError if the model cannot be built."""
        if context.layout.prefix() and not self.mixes_prefix:
            message = f"the {type(self).__name__.lower()} mixer does not mix the class token or registers"
            hint = "set tokens.cls=false, tokens.registers=0 and pool=mean, or use mixer=attention"
            raise ConfigError(message, code="config.conflict", where="mixer", hint=hint)


class Pooling(BaseMixer):
    """The mean of each patch's 3 x 3 neighborhood minus the patch (PoolFormer)."""

    kind: Literal["pooling"] = "pooling"

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> nn.Module:
        return PoolingMixer()


class PoolingMixer(nn.Module):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        image = x.mT.unflatten(2, layout.grid)  # (B, D, R, S)
        mean = F.avg_pool2d(image, 3, stride=1, padding=1, count_include_pad=False)
        return mean.flatten(2).mT - x  # (B, N, D)


class Identity(BaseMixer):
    """No mixing: an MLP on each patch alone."""

    kind: Literal["identity"] = "identity"

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> nn.Module:
        return IdentityMixer()


class IdentityMixer(nn.Module):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        return x[:, :keep]


class TokenMlp(BaseMixer):
    """An MLP across tokens, shared by all channels (MLP-Mixer, arXiv 2105.01601). The grid is fixed."""

    kind: Literal["token_mlp"] = "token_mlp"
    hidden: int = Field(default=256, ge=1, le=100_000)
    mixes_prefix: ClassVar[bool] = True

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> nn.Module:
        return TokenMlpMixer(context.layout, self.hidden)


class TokenMlpMixer(InitModule):
    def __init__(self, layout: Layout, hidden: int) -> None:
        super().__init__()
        self.grid: Grid = layout.grid
        self.expand = nn.Linear(layout.length(), hidden)
        self.contract = nn.Linear(hidden, layout.length())

    def initialize(self, init: BaseInit) -> None:
        init.mlp(self.expand)
        init.mlp(self.contract)

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        if layout.grid != self.grid:
            message = f"the token_mlp mixer was built for a {self.grid} grid of patches, got {layout.grid}"
            hint = "use images of that size, or mixer=attention"
            raise ConfigError(message, code="config.size_mismatch", where="image_size", hint=hint)
        hidden = F.gelu(self.expand(x.mT), approximate="tanh")  # (B, D, hidden)
        return self.contract(hidden).mT[:, :keep]  # (B, keep, D)


MixerConfig = Annotated[Attention | Axial | Local | Pooling | Identity | TokenMlp, Field(discriminator="kind")]
