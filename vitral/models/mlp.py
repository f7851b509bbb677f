"""The MLP of a block: two layers as in the paper, or gated as SwiGLU.  B images, L tokens, D width."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.models.activation import ActivationName, activate
from vitral.models.base import BuildContext
from vitral.models.init import BaseInit, InitModule


class BaseMlp(Config):
    """Settings of every MLP."""

    dropout: float = Field(default=0.0, ge=0, lt=1)  # after each of its layers
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] | Literal["dropout"] = "dropout"  # after the first, if another
    bias: bool = True  # of its layers
    norm: bool = False  # of the hidden vector, before the last layer, as in EVA-02


class Mlp(BaseMlp):
    """Two layers with an activation. The original uses GELU in the tanh form, most others the exact one."""

    kind: Literal["mlp"] = "mlp"
    ratio: float = Field(default=4.0, gt=0, le=100)
    activation: ActivationName = "gelu_tanh"

    def hidden(self, width: int) -> int:
        return max(1, round(width * self.ratio))

    def build(self, context: BuildContext) -> nn.Module:
        return FeedForward(self, context)


class BaseFeedForward(InitModule):
    """The layers of an MLP; the first has `parts` hidden vectors."""

    def __init__(self, config: "Mlp | SwiGlu", context: BuildContext, parts: int) -> None:
        super().__init__()
        hidden = config.hidden(context.width)
        self.parts, self.activation = parts, config.activation
        self.expand = nn.Linear(context.width, parts * hidden, bias=config.bias)
        self.norm = context.build_norm(hidden) if config.norm else nn.Identity()
        self.contract = nn.Linear(hidden, context.width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.hidden_dropout = nn.Dropout(
            config.dropout if config.hidden_dropout == "dropout" else config.hidden_dropout
        )

    def initialize(self, init: BaseInit) -> None:
        init.mlp(self.expand, self.parts)
        init.mlp(self.contract)

    def output_weights(self) -> list[Tensor]:
        return [self.contract.weight]

    def output(self, hidden: Tensor) -> Tensor:
        return self.dropout(self.contract(self.norm(self.hidden_dropout(hidden))))  # (B, L, D)


class FeedForward(BaseFeedForward):
    def __init__(self, config: Mlp, context: BuildContext) -> None:
        super().__init__(config, context, parts=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(activate(self.expand(x), self.activation))  # (B, L, D)


class SwiGlu(BaseMlp):
    """SwiGLU (arXiv 2002.05202); the hidden width is rounded up to a multiple of 8, as in DINOv2."""

    kind: Literal["swiglu"] = "swiglu"
    ratio: float = Field(default=8 / 3, gt=0, le=100)
    activation: ActivationName = "silu"  # of the gate
    multiple: int = Field(default=8, ge=1, le=10_000)  # of the hidden width; 1 takes width * ratio as it is

    def hidden(self, width: int) -> int:
        if self.multiple == 1:
            return max(1, round(width * self.ratio))
        return (int(width * self.ratio) + self.multiple - 1) // self.multiple * self.multiple

    def build(self, context: BuildContext) -> nn.Module:
        return GatedFeedForward(self, context)


class GatedFeedForward(BaseFeedForward):
    def __init__(self, config: SwiGlu, context: BuildContext) -> None:
        super().__init__(config, context, parts=2)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.expand(x).chunk(2, dim=-1)  # each (B, L, hidden)
        return self.output(activate(gate, self.activation) * value)  # (B, L, D)


MlpConfig = Annotated[Mlp | SwiGlu, OpenUnion()]
