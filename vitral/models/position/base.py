"""The interface of position embeddings.  B images, R x S patches, N = R S, L tokens, D width, H heads, d head width.

A position embedding is added to the tokens (`Position`) or acts inside attention (`AttentionPosition`).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.init import InitModule

AppliesTo = Literal["nowhere", "tokens", "attention"]


class GridDependent(InitModule):
    """A module whose weights may depend on the patch grid. By default they do not."""

    def resample_weights(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        """Its weights by name, resampled from those of the same module for another grid."""
        return dict(weights)


class Position(GridDependent):
    """Added to the tokens before a layer; nothing by default."""

    def forward(self, tokens: Tensor, layout: Layout, layer: int) -> Tensor:
        return tokens


class AttentionPosition(GridDependent):
    """Position information inside attention; none by default."""

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        """Queries or keys (B, H, tokens, d), rotated by their position."""
        return x

    def bias(self, q: Tensor, grid: Grid, window: Grid) -> Tensor | None:
        """The bias (..., n, n) to add to the attention logits among the n patches of a window, if any."""
        return None

    def token_bias(self, q: Tensor, layout: Layout) -> Tensor | None:
        """The bias (..., queries, L) for the first tokens as queries, if any; zero for the prefix tokens by default."""
        prefix = layout.prefix()
        if q.shape[-2] <= prefix:
            return None
        bias = self.bias(q[:, :, prefix:], layout.grid, layout.grid)  # (..., N, N)
        return None if bias is None else F.pad(bias, (prefix, 0, prefix, 0))


class BasePosition(Config):
    """A kind of position embedding; the defaults do nothing."""

    applies_to: ClassVar[AppliesTo] = "tokens"

    def shares_layers(self) -> bool:
        """Whether all layers use the same module inside attention."""
        return False

    def check(self, width: int, head_width: int) -> None:
        """Raise ConfigError for widths that this kind does not support."""

    def build(self, context: BuildContext) -> Position:
        return Position()

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return AttentionPosition()


def check_divisible(field: str, value: int, divisor: int, reason: str) -> None:
    if value % divisor:
        hint = f"use a multiple of {divisor} such as {(value // divisor + 1) * divisor}"
        raise ConfigError(f"{reason}, but {field} is {value}", code="config.indivisible", where=field, hint=hint)


class NoPosition(BasePosition):
    """No position information: a bag of patches."""

    kind: Literal["none"] = "none"
    applies_to: ClassVar[AppliesTo] = "nowhere"
