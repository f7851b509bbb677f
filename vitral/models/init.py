"""Weight initialization.

Each module says what its parameters are for; an init scheme says how parameters of each kind start. The default is
that of google-research/vision_transformer.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion

M = TypeVar("M", bound=nn.Module)
# The standard deviation of a normal distribution truncated at two standard deviations; Flax divides by it.
TRUNCATED_STD = 0.87962566103423978


def lecun_normal_(weight: Tensor) -> Tensor:
    """Flax's default for dense and convolution kernels (out, in, ...): truncated normal of variance 1 / fan-in."""
    std = weight[0].numel() ** -0.5 / TRUNCATED_STD
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def zero_bias_(linear: nn.Linear) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class OutputPlace(NamedTuple):
    """Where the weight is whose output a branch adds to the tokens."""

    layer: int  # from 1
    depth: int  # layers of the model
    part: Literal["attention", "mlp"]


class BaseInit(Config):
    """The initialization of google-research/vision_transformer; subclasses override parts of it."""

    def dense(self, linear: nn.Linear) -> None:
        """Layers with Flax's default: patch embedding, and the hidden layer of the pre-training head."""
        lecun_normal_(linear.weight)
        zero_bias_(linear)

    def convolution(self, weight: Tensor) -> None:
        lecun_normal_(weight)

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        """A projection of attention; `parts` matrices are stacked in one weight and drawn separately."""
        for matrix in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
        zero_bias_(linear)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        for matrix in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
        if linear.bias is not None:
            nn.init.normal_(linear.bias, std=1e-6)

    def token(self, token: Tensor) -> None:
        """The class token."""
        nn.init.zeros_(token)

    def register(self, registers: Tensor) -> None:
        """Registers. They must differ: equal registers would get equal gradients."""
        nn.init.normal_(registers, std=0.02)

    def embedding(self, table: Tensor) -> None:
        """A table of embeddings that are looked up (K, D)."""
        nn.init.normal_(table, std=0.02)

    def position_table(self, table: Tensor) -> None:
        """Learned position embeddings (..., D)."""
        nn.init.normal_(table, std=0.02)

    def head(self, linear: nn.Linear, bias: float) -> None:
        nn.init.zeros_(linear.weight)
        nn.init.constant_(linear.bias, bias)

    def rescale_output(self, weight: Tensor, place: OutputPlace) -> None:
        """The last weight of a branch, after it was drawn."""


class Original(BaseInit):
    """google-research/vision_transformer."""

    kind: Literal["original"] = "original"


class BigVision(BaseInit):
    """google-research/big_vision: position embeddings have std 1 / sqrt(D)."""

    kind: Literal["big_vision"] = "big_vision"

    def position_table(self, table: Tensor) -> None:
        nn.init.normal_(table, std=table.shape[-1] ** -0.5)


class Zeros(BaseInit):
    """Class token and positions zero, all linear layers truncated normal of std 0.02."""

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
    """As vit-pytorch: class token and positions unit normal, linear layers with the default of torch."""

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


class Xavier(BaseInit):
    """MAE's and MoCo v3's: Xavier-uniform linear layers, the patch embedding among them, and a normal class token."""

    kind: Literal["xavier"] = "xavier"
    qkv: Literal["stacked", "separate"] = "stacked"  # how queries, keys and values are drawn: MoCo v3 has them separate
    token_std: float = Field(default=0.02, ge=0)

    def dense(self, linear: nn.Linear) -> None:
        nn.init.xavier_uniform_(linear.weight)
        zero_bias_(linear)

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        super().attention(linear, parts if self.qkv == "separate" else 1)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        super().mlp(linear, parts)
        zero_bias_(linear)

    def token(self, token: Tensor) -> None:
        nn.init.normal_(token, std=self.token_std)


class TruncatedNormal(BaseInit):
    """DINO's and DeiT's: all truncated normal of std 0.02, but the patch embedding with the default of torch."""

    kind: Literal["truncated_normal"] = "truncated_normal"
    std: float = Field(default=0.02, gt=0)

    def dense(self, linear: nn.Linear) -> None:
        linear.reset_parameters()

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        nn.init.trunc_normal_(linear.weight, std=self.std)
        zero_bias_(linear)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        self.attention(linear)

    def token(self, token: Tensor) -> None:
        nn.init.trunc_normal_(token, std=self.std)

    def position_table(self, table: Tensor) -> None:
        nn.init.trunc_normal_(table, std=self.std)


class DepthScaled(BaseInit):
    """BEiT's: all truncated normal of std 0.02; the outputs of layer l are divided by the square root of 2 l."""

    kind: Literal["depth_scaled"] = "depth_scaled"

    def dense(self, linear: nn.Linear) -> None:
        self.attention(linear)

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        nn.init.trunc_normal_(linear.weight, std=0.02)
        zero_bias_(linear)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        self.attention(linear)

    def token(self, token: Tensor) -> None:
        nn.init.trunc_normal_(token, std=0.02)

    def position_table(self, table: Tensor) -> None:
        nn.init.trunc_normal_(table, std=0.02)

    def rescale_output(self, weight: Tensor, place: OutputPlace) -> None:
        weight.div_((2 * place.layer) ** 0.5)


class ImageGpt(BaseInit):
    """iGPT's, after GPT-2: all normal, of std 0.02 but for positions (0.01) and attention (1 / sqrt(D)).

    The output of attention is divided by the square root of the number of layers.
    """

    kind: Literal["image_gpt"] = "image_gpt"

    def dense(self, linear: nn.Linear) -> None:
        self.mlp(linear)

    def attention(self, linear: nn.Linear, parts: int = 1) -> None:
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        zero_bias_(linear)

    def mlp(self, linear: nn.Linear, parts: int = 1) -> None:
        nn.init.normal_(linear.weight, std=0.02)
        zero_bias_(linear)

    def token(self, token: Tensor) -> None:
        nn.init.normal_(token, std=0.02)

    def position_table(self, table: Tensor) -> None:
        nn.init.normal_(table, std=0.01)

    def rescale_output(self, weight: Tensor, place: OutputPlace) -> None:
        if place.part == "attention":
            weight.div_(place.depth**0.5)


InitConfig = Annotated[
    Original | BigVision | Zeros | Normal | Xavier | TruncatedNormal | DepthScaled | ImageGpt, OpenUnion()
]


class InitModule(nn.Module):
    """A module that initializes its own parameters by an init scheme."""

    output_part: ClassVar[Literal["attention", "mlp"]] = "mlp"  # of its `output_weights`

    def initialize(self, init: BaseInit) -> None:
        """Initialize the parameters that are directly in this module."""

    def output_weights(self) -> list[Tensor]:
        """Those of them whose output is added to the tokens."""
        return []


def allocate(model: M, device: torch.device) -> M:
    """Move a model from the meta device, and return it; the values of its tensors are arbitrary.

    `Module.to_empty` does the same by an operation that imports sympy, which takes a third of a second.
    """

    def empty(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    return model._apply(empty)  # type: ignore[no-untyped-call]


@torch.no_grad()
def initialize(model: M, init: BaseInit) -> M:
    """Initialize every parameter of the model, and return it."""
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
            norm.reset_parameters()
    for part in model.modules():  # after the norms, which a module may override
        if isinstance(part, InitModule):
            part.initialize(init)
    return model


@torch.no_grad()
def rescale_outputs(blocks: Iterable[nn.Module], init: BaseInit) -> None:
    """Scale what the branches of each layer add to the tokens, as the init scheme has it."""
    layers = list(blocks)
    for layer, block in enumerate(layers, start=1):
        for part in block.modules():
            if isinstance(part, InitModule):
                for weight in part.output_weights():
                    init.rescale_output(weight, OutputPlace(layer, len(layers), part.output_part))
