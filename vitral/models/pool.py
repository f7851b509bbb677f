"""From a sequence to one vector an image.  B images, L tokens, D width, H heads, d head width.

A pool says how many leading tokens it reads, so that the last block need not compute the rest.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.attention import Heads, attention_weights
from vitral.models.base import Layout, Whole, check_heads
from vitral.models.init import Initial, Initialized
from vitral.models.mlp import MlpConfig


class Pool(Initialized):
    """By default every token is read."""

    def keep(self, layout: Layout) -> int:
        return layout.length()

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        """How much of each of all tokens the vector is made of (B, L); rows sum to one."""
        raise NotImplementedError


def evenly(tokens: Tensor, first: int, end: int) -> Tensor:
    """As much of each token from the first to before the end, and none of the others."""
    shares = tokens.new_zeros(tokens.shape[:2])  # (B, L)
    shares[:, first:end] = 1 / (end - first)
    return shares


class PoolKind(Config):
    def check(self, whole: Whole) -> None:
        """Refuse what cannot be built into this model."""

    def outputs(self, width: int) -> int:
        """How many numbers the vector has."""
        return width

    def normalizes(self) -> bool:
        """Whether the pool does what the norm after the last layer would do."""
        return False


class ClassPool(PoolKind):
    """The class token (eq. 4)."""

    kind: Literal["cls"] = "cls"

    def check(self, whole: Whole) -> None:
        if not whole.layout.cls:
            message, hint = "no class token to read", "set tokens.cls=true or pool=mean"
            raise ConfigError(message, code="config.conflict", where="pool", hint=hint)

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return ReadClass()


class ReadClass(Pool):
    def keep(self, layout: Layout) -> int:
        return layout.cls

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens[:, 0]  # (B, D)

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        return evenly(tokens, 0, 1)  # (B, L)


class DistilledPool(PoolKind):
    """The class token beside the first register, which is DeiT's distillation token (arXiv 2012.12877).

    A linear head on both is the mean of DeiT's two heads.
    """

    kind: Literal["distilled"] = "distilled"

    def check(self, whole: Whole) -> None:
        if not (whole.layout.cls and whole.layout.registers):
            message = "reads the class token and the first register, and one of them is not there"
            hint = "set tokens.cls=true and tokens.registers=1"
            raise ConfigError(message, code="config.conflict", where="pool", hint=hint)

    def outputs(self, width: int) -> int:
        return 2 * width

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return ReadPair()


class ReadPair(Pool):
    def keep(self, layout: Layout) -> int:
        return 2

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens[:, :2].flatten(1)  # (B, 2 D)

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        return evenly(tokens, 0, 2)  # (B, L)


class MeanPool(PoolKind):
    """The mean of the patches; as good as the class token at a learning rate of its own (appendix D.3)."""

    kind: Literal["mean"] = "mean"
    norm: Literal["before", "after"] = "before"  # MAE's fine-tuning normalizes the mean, not the tokens

    def normalizes(self) -> bool:
        return self.norm == "after"

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return PatchMean(nn.LayerNorm(whole.width, whole.eps) if self.normalizes() else nn.Identity())


class PatchMean(Pool):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.norm(tokens[:, layout.prefix() :].mean(dim=1))  # (B, D)

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        return evenly(tokens, layout.prefix(), layout.length())  # (B, L)


class ClassMeanPool(PoolKind):
    """The class token beside the mean of the patches: what DINOv2's linear head reads (arXiv 2304.07193)."""

    kind: Literal["cls_mean"] = "cls_mean"

    def check(self, whole: Whole) -> None:
        ClassPool().check(whole)

    def outputs(self, width: int) -> int:
        return 2 * width

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return ClassAndMean()


class ClassAndMean(Pool):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return torch.cat([tokens[:, 0], tokens[:, layout.prefix() :].mean(dim=1)], dim=1)  # (B, 2 D)

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        return (evenly(tokens, 0, 1) + evenly(tokens, layout.prefix(), layout.length())) / 2  # (B, L)


class MeanAllPool(PoolKind):
    """The mean of every token, class token and registers included, as in seed 002 of the notes."""

    kind: Literal["mean_all"] = "mean_all"

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return TokenMean()


class TokenMean(Pool):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens.mean(dim=1)  # (B, D)

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        return evenly(tokens, 0, layout.length())  # (B, L)


class AttentionPool(PoolKind):
    """A learned query gathers from every token and passes an MLP (MAP of big_vision)."""

    kind: Literal["attention"] = "attention"
    heads: Annotated[int, Field(ge=1, le=1_000)] | Literal["mixer"] = "mixer"  # as many as the mixer has

    def count(self, whole: Whole) -> int:
        return whole.heads if self.heads == "mixer" else self.heads

    def check(self, whole: Whole) -> None:
        if not self.count(whole):
            message = "the mixer has no heads to count"
            raise ConfigError(message, code="config.conflict", where="pool.heads", hint="set a number")
        check_heads(whole.width, self.count(whole), where="pool.heads")

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return Gather(self, whole, mlp)


class Gather(Pool):
    def __init__(self, config: AttentionPool, whole: Whole, mlp: MlpConfig) -> None:
        super().__init__()
        self.heads = config.count(whole)
        self.query = nn.Parameter(torch.empty(1, 1, whole.width))
        self.q = nn.Linear(whole.width, whole.width)
        self.kv = nn.Linear(whole.width, 2 * whole.width)
        self.project = nn.Linear(whole.width, whole.width)
        self.norm = nn.LayerNorm(whole.width, whole.eps)
        self.mlp = mlp.build(whole)

    def initialize(self, initial: Initial) -> None:
        nn.init.xavier_uniform_(self.query[0])
        initial.attention(self.q)
        initial.attention(self.kv, parts=2)
        initial.attention(self.project)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.think(self.gather(self.look(tokens)))  # (B, D)

    def look(self, tokens: Tensor) -> Heads:
        """The learned query, and the keys and values of every token."""
        q = self.q(self.query).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (1, H, 1, d)
        kv = self.kv(tokens).unflatten(-1, (2, self.heads, -1))  # (B, L, 2, H, d)
        k, v = kv.permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
        return Heads(q.expand(k.shape[0], -1, -1, -1), k, v)

    def gather(self, heads: Heads) -> Tensor:
        return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)  # (B, 1, D)

    def think(self, gathered: Tensor) -> Tensor:
        x = self.project(gathered[:, 0])  # (B, D)
        return x + self.mlp(self.norm(x))  # (B, D)

    def weights(self, heads: Heads, layout: Layout) -> Tensor:
        """What the query looked at (B, H, 1, L) by the plain formula; rows sum to one."""
        return attention_weights(heads.q, heads.k)

    def reads(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.weights(self.look(tokens), layout).mean(dim=1)[:, 0]  # (B, L)


PoolConfig = Annotated[
    ClassPool | DistilledPool | MeanPool | ClassMeanPool | MeanAllPool | AttentionPool, Field(discriminator="kind")
]
