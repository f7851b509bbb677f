"""How a model begins.

Each part says which role its parameters play; a kind of beginning says what each role starts from.
The default is Google's code to the last constant; the others are the variants met in the notes and in big_vision.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config

# A normal distribution cut at two standard deviations keeps this much of its spread; Flax divides it out again.
TRUNCATED_STD = 0.87962566103423978


def lecun_normal_(weight: Tensor) -> Tensor:
    """Flax's default for dense and convolution kernels (out, in, ...): truncated normal of variance 1 / fan-in."""
    deviation = weight[0].numel() ** -0.5 / TRUNCATED_STD
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def zero_bias_(linear: nn.Linear) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class BaseInit(Config):
    """What each role starts from; unless a kind says otherwise, as in google-research/vision_transformer."""

    def dense(self, linear: nn.Linear) -> None:
        """A map that Flax leaves at its default: from pixels to tokens, and the pre-training head's first."""
        lecun_normal_(linear.weight)
        zero_bias_(linear)

    def convolution(self, weight: Tensor) -> None:
        lecun_normal_(weight)

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        """A projection of attention; `parts` matrices lie stacked in one and are drawn as the matrices they are."""
        for matrix in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
        zero_bias_(linear)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        for matrix in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
        nn.init.normal_(linear.bias, std=1e-6)

    def token(self, token: Tensor) -> None:
        """The class token."""
        nn.init.zeros_(token)

    def register(self, registers: Tensor) -> None:
        """Registers, which nothing but their start tells apart: alike at first, they would stay alike for ever."""
        nn.init.normal_(registers, std=0.02)

    def position_table(self, table: Tensor) -> None:
        """Learned positions (..., D)."""
        nn.init.normal_(table, std=0.02)

    def head(self, linear: nn.Linear, bias: float) -> None:
        nn.init.zeros_(linear.weight)
        nn.init.constant_(linear.bias, bias)


class Original(BaseInit):
    """google-research/vision_transformer."""

    kind: Literal["original"] = "original"


class BigVision(BaseInit):
    """google-research/big_vision: positions start at the scale of the tokens."""

    kind: Literal["big_vision"] = "big_vision"

    def position_table(self, table: Tensor) -> None:
        nn.init.normal_(table, std=table.shape[-1] ** -0.5)


class Zeros(BaseInit):
    """Class token and positions of zeros, all linear maps truncated normal of 0.02."""

    kind: Literal["zeros"] = "zeros"

    def dense(self, linear: nn.Linear) -> None:
        self.attention(linear)

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        nn.init.trunc_normal_(linear.weight, std=0.02)
        zero_bias_(linear)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        self.attention(linear)

    def position_table(self, table: Tensor) -> None:
        nn.init.zeros_(table)


class Normal(BaseInit):
    """vit-pytorch: class token and positions unit normal, linear maps as torch makes them."""

    kind: Literal["normal"] = "normal"

    def dense(self, linear: nn.Linear) -> None:
        linear.reset_parameters()

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        linear.reset_parameters()

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        linear.reset_parameters()

    def token(self, token: Tensor) -> None:
        nn.init.normal_(token)

    def position_table(self, table: Tensor) -> None:
        nn.init.normal_(table)

    def head(self, linear: nn.Linear, bias: float) -> None:
        linear.reset_parameters()
        if bias:
            nn.init.constant_(linear.bias, bias)


InitConfig = Annotated[Original | BigVision | Zeros | Normal, Field(discriminator="kind")]


class InitModule(nn.Module):
    """A part with parameters of its own, which says what they are."""

    def initialize(self, init: BaseInit) -> None:
        """Give every parameter that is this part's own its first value."""


@torch.no_grad()
def initialize(model: nn.Module, init: BaseInit) -> None:
    """Give every parameter of the model its first value, wherever it was made."""
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm | nn.GroupNorm):
            norm.reset_parameters()
    for part in model.modules():  # after the norms, since a part may want another start for its own
        if isinstance(part, InitModule):
            part.initialize(init)
