"""From a sequence to one vector an image.  B images, L tokens, D width.

A pool says how many leading tokens it reads, so that the last block need not compute the rest.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.config import Config
from vitral.errors import ConfigError
from vitral.model.initial import Initial, Initialised
from vitral.model.mlp import MlpConfig
from vitral.model.shapes import Layout, Whole, check_heads


class Pool(Initialised):
    """By default every token is read."""

    def keep(self, layout: Layout) -> int:
        return layout.length()


class PoolKind(Config):
    def check(self, whole: Whole) -> None:
        """Refuse what cannot be built into this model."""


class ClassPool(PoolKind):
    """The class token (eq. 4)."""

    kind: Literal["cls"] = "cls"

    def check(self, whole: Whole) -> None:
        if not whole.layout.cls:
            raise ConfigError("no class token to read", where="pool", remedy="set tokens.cls=true or pool=mean")

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return ReadClass()


class ReadClass(Pool):
    def keep(self, layout: Layout) -> int:
        return layout.cls

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens[:, 0]  # (B, D)


class MeanPool(PoolKind):
    """The mean of the patches; as good as the class token at a learning rate of its own (appendix D.3)."""

    kind: Literal["mean"] = "mean"

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return PatchMean()


class PatchMean(Pool):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens[:, layout.prefix() :].mean(dim=1)  # (B, D)


class MeanAllPool(PoolKind):
    """The mean of every token, class token and registers included, as in seed 002 of the notes."""

    kind: Literal["mean_all"] = "mean_all"

    def build(self, whole: Whole, mlp: MlpConfig) -> Pool:
        return TokenMean()


class TokenMean(Pool):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens.mean(dim=1)  # (B, D)


class AttentionPool(PoolKind):
    """A learned query gathers from every token and passes an MLP (MAP of big_vision)."""

    kind: Literal["attention"] = "attention"
    heads: Annotated[int, Field(ge=1, le=1_000)] | Literal["mixer"] = "mixer"  # as many as the mixer has

    def count(self, whole: Whole) -> int:
        return whole.heads if self.heads == "mixer" else self.heads

    def check(self, whole: Whole) -> None:
        if not self.count(whole):
            raise ConfigError("the mixer has no heads to count", where="pool.heads", remedy="set a number")
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

    def initialise(self, initial: Initial) -> None:
        nn.init.xavier_uniform_(self.query[0])
        initial.attention(self.q)
        initial.attention(self.kv, parts=2)
        initial.attention(self.project)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        q = self.q(self.query).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (1, H, 1, d)
        kv = self.kv(tokens).unflatten(-1, (2, self.heads, -1))  # (B, L, 2, H, d)
        k, v = kv.permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
        gathered = F.scaled_dot_product_attention(q.expand(k.shape[0], -1, -1, -1), k, v)  # (B, H, 1, d)
        x = self.project(gathered.flatten(1))  # (B, D)
        return x + self.mlp(self.norm(x))  # (B, D)


PoolConfig = Annotated[ClassPool | MeanPool | MeanAllPool | AttentionPool, Field(discriminator="kind")]
