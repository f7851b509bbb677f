"""The MLP of a block: two layers as in the paper, or SwiGLU.  B images, L tokens, D width."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.models.base import BuildContext
from vitral.models.init import BaseInit, InitModule

Gelu = Literal["tanh", "erf", "quick"]


def gelu(x: Tensor, how: Gelu) -> Tensor:
    """GELU (arXiv 1606.08415): exact, by tanh, or CLIP's sigmoid approximation."""
    if how == "quick":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if how == "tanh" else "none")


class BaseMlp(Config):
    """Settings of every MLP."""

    dropout: float = Field(default=0.0, ge=0, lt=1)  # after each of its layers


class Mlp(BaseMlp):
    """Two layers with GELU. The original uses the tanh form, most others erf, CLIP the sigmoid form."""

    kind: Literal["mlp"] = "mlp"
    ratio: float = Field(default=4.0, gt=0, le=100)
    gelu: Gelu = "tanh"

    def hidden(self, width: int) -> int:
        return max(1, round(width * self.ratio))

    def build(self, context: BuildContext) -> nn.Module:
        return FeedForward(self, context)


class BaseFeedForward(InitModule):
    """The layers of an MLP; the first has `parts` hidden vectors."""

    def __init__(self, config: "Mlp | SwiGlu", context: BuildContext, parts: int) -> None:
        super().__init__()
        hidden = config.hidden(context.width)
        self.parts = parts
        self.expand = nn.Linear(context.width, parts * hidden)
        self.contract = nn.Linear(hidden, context.width)
        self.dropout = nn.Dropout(config.dropout)

    def initialize(self, init: BaseInit) -> None:
        init.mlp(self.expand, self.parts)
        init.mlp(self.contract)


class FeedForward(BaseFeedForward):
    def __init__(self, config: Mlp, context: BuildContext) -> None:
        super().__init__(config, context, parts=1)
        self.gelu = config.gelu

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(gelu(self.expand(x), self.gelu))  # (B, L, ratio D)
        return self.dropout(self.contract(hidden))  # (B, L, D)


class SwiGlu(BaseMlp):
    """SwiGLU (arXiv 2002.05202); the hidden width is rounded up to a multiple of 8, as in DINOv2."""

    kind: Literal["swiglu"] = "swiglu"
    ratio: float = Field(default=8 / 3, gt=0, le=100)

    def hidden(self, width: int) -> int:
        return (int(width * self.ratio) + 7) // 8 * 8

    def build(self, context: BuildContext) -> nn.Module:
        return GatedFeedForward(self, context)


class GatedFeedForward(BaseFeedForward):
    def __init__(self, config: SwiGlu, context: BuildContext) -> None:
        super().__init__(config, context, parts=2)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.expand(x).chunk(2, dim=-1)  # each (B, L, hidden)
        return self.dropout(self.contract(self.dropout(F.silu(gate) * value)))  # (B, L, D)


MlpConfig = Annotated[Mlp | SwiGlu, OpenUnion()]
