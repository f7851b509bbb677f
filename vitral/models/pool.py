"""Pooling: tokens to one vector per image.  B images, L tokens, D width, H heads, d head width.

`keep` is the number of leading tokens that are pooled; the last block need not compute the rest.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.attention import Qkv, attention_weights
from vitral.models.base import BuildContext, Layout, check_heads
from vitral.models.init import BaseInit, InitModule
from vitral.models.mlp import MlpConfig


class Pool(InitModule):
    """Pools a sequence; by default all tokens."""

    def keep(self, layout: Layout) -> int:
        return layout.length()

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        """The weight of each token in the pooled vector (B, L); rows sum to one."""
        raise NotImplementedError


def uniform_weights(tokens: Tensor, first: int, end: int) -> Tensor:
    """Equal weights for tokens from `first` to before `end`, zero for the others."""
    weights = tokens.new_zeros(tokens.shape[:2])  # (B, L)
    weights[:, first:end] = 1 / (end - first)
    return weights


class BasePool(Config):
    def check(self, context: BuildContext) -> None:
        """Raise ConfigError if the model cannot be built."""

    def out_width(self, width: int) -> int:
        """The width of the pooled vector."""
        return width

    def normalizes(self) -> bool:
        """Whether the pool replaces the norm after the last layer."""
        return False


# The norm after the last layer: before the pool, after it as in MAE's fine-tuning, in both places, or nowhere.
NormPlace = Literal["before", "after", "both", "none"]


class NormedPool(BasePool):
    """A pool with a choice of where the norm is."""

    norm: NormPlace = "before"

    def normalizes(self) -> bool:
        return self.norm in ("after", "none")

    def build_norm(self, context: BuildContext) -> nn.Module:
        """The norm of the pooled vector."""
        return context.build_norm() if self.norm in ("after", "both") else nn.Identity()


class ClassPool(NormedPool):
    """The class token (eq. 4)."""

    kind: Literal["cls"] = "cls"

    def check(self, context: BuildContext) -> None:
        if not context.layout.cls:
            message, hint = "there is no class token", "set tokens.cls=true or pool=mean"
            raise ConfigError(message, code="config.conflict", where="pool", hint=hint)

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return ClassPooling(self.build_norm(context))


class NormedPooling(Pool):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm


class ClassPooling(NormedPooling):
    def keep(self, layout: Layout) -> int:
        return layout.cls

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.norm(tokens[:, 0])  # (B, D)

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return uniform_weights(tokens, 0, 1)  # (B, L)


class DistilledPool(BasePool):
    """The class token and DeiT's distillation token, the first register, concatenated (arXiv 2012.12877).

    A linear head on both equals the mean of DeiT's two heads.
    """

    kind: Literal["distilled"] = "distilled"

    def check(self, context: BuildContext) -> None:
        if not (context.layout.cls and context.layout.registers):
            message = "needs a class token and a register, and one of them is missing"
            hint = "set tokens.cls=true and tokens.registers=1"
            raise ConfigError(message, code="config.conflict", where="pool", hint=hint)

    def out_width(self, width: int) -> int:
        return 2 * width

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return DistilledPooling()


class DistilledPooling(Pool):
    def keep(self, layout: Layout) -> int:
        return 2

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return tokens[:, :2].flatten(1)  # (B, 2 D)

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return uniform_weights(tokens, 0, 2)  # (B, L)


class MeanPool(NormedPool):
    """The mean of the patches (appendix D.3)."""

    kind: Literal["mean"] = "mean"

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return MeanPooling(self.build_norm(context))


class MeanPooling(NormedPooling):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.norm(tokens[:, layout.prefix() :].mean(dim=1))  # (B, D)

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return uniform_weights(tokens, layout.prefix(), layout.length())  # (B, L)


class ClassMeanPool(BasePool):
    """The class token and the mean of the patches, concatenated, as in DINOv2's linear head (arXiv 2304.07193)."""

    kind: Literal["cls_mean"] = "cls_mean"

    def check(self, context: BuildContext) -> None:
        ClassPool().check(context)

    def out_width(self, width: int) -> int:
        return 2 * width

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return ClassMeanPooling()


class ClassMeanPooling(Pool):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return torch.cat([tokens[:, 0], tokens[:, layout.prefix() :].mean(dim=1)], dim=1)  # (B, 2 D)

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return (uniform_weights(tokens, 0, 1) + uniform_weights(tokens, layout.prefix(), layout.length())) / 2  # (B, L)


class MeanAllPool(NormedPool):
    """The mean of all tokens, class token and registers included."""

    kind: Literal["mean_all"] = "mean_all"

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return MeanAllPooling(self.build_norm(context))


class MeanAllPooling(NormedPooling):
    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.norm(tokens.mean(dim=1))  # (B, D)

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return uniform_weights(tokens, 0, layout.length())  # (B, L)


class PrefixPool(NormedPool):
    """The mean of the class token and the registers, as of the several class tokens of Pixio."""

    kind: Literal["prefix"] = "prefix"

    def check(self, context: BuildContext) -> None:
        if not context.layout.prefix():
            message, hint = "there are no tokens before the patches", "set tokens.cls=true or pool=mean"
            raise ConfigError(message, code="config.conflict", where="pool", hint=hint)

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return PrefixPooling(self.build_norm(context))


class PrefixPooling(NormedPooling):
    def keep(self, layout: Layout) -> int:
        return layout.prefix()

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.norm(tokens[:, : layout.prefix()].mean(dim=1))  # (B, D)

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return uniform_weights(tokens, 0, layout.prefix())  # (B, L)


class AttentionPool(BasePool):
    """Attention of a learned query over the tokens, then an MLP (MAP of big_vision)."""

    kind: Literal["attention"] = "attention"
    heads: Annotated[int, Field(ge=1, le=1_000)] | Literal["mixer"] = "mixer"  # mixer: as many as the mixer
    tokens: Literal["all", "patches"] = "all"  # that the query attends to
    mlp_ratio: Annotated[float, Field(gt=0, le=100)] | Literal["mlp", "none"] = "mlp"  # mlp: that of the blocks
    project_query: bool = True  # AIMv2 learns the projected query itself, and has no MLP (mlp_ratio none)

    def num_heads(self, context: BuildContext) -> int:
        return context.heads if self.heads == "mixer" else self.heads

    def check(self, context: BuildContext) -> None:
        if not self.num_heads(context):
            raise ConfigError("the mixer has no heads", code="config.conflict", where="pool.heads", hint="set a number")
        check_heads(context.width, self.num_heads(context), where="pool.heads")

    def build(self, context: BuildContext, mlp: MlpConfig) -> Pool:
        return AttentionPooling(self, context, mlp)


class AttentionPooling(Pool):
    def __init__(self, config: AttentionPool, context: BuildContext, mlp: MlpConfig) -> None:
        super().__init__()
        self.heads, self.patches_only = config.num_heads(context), config.tokens == "patches"
        self.query = nn.Parameter(torch.empty(1, 1, context.width))
        self.q = nn.Linear(context.width, context.width) if config.project_query else nn.Identity()
        self.kv = nn.Linear(context.width, 2 * context.width)
        self.project = nn.Linear(context.width, context.width)
        self.has_mlp = config.mlp_ratio != "none"
        self.norm = context.build_norm() if self.has_mlp else nn.Identity()
        ratio = {} if config.mlp_ratio in ("mlp", "none") else {"ratio": config.mlp_ratio}
        self.mlp = mlp.model_copy(update=ratio).build(context) if self.has_mlp else nn.Identity()

    def initialize(self, init: BaseInit) -> None:
        nn.init.xavier_uniform_(self.query[0])
        if isinstance(self.q, nn.Linear):
            init.attention(self.q)
        init.attention(self.kv, parts=2)
        init.attention(self.project)

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.output(self.attend(self.project_qkv(tokens), layout))  # (B, D)

    def bias(self, heads: Qkv, layout: Layout) -> Tensor | None:
        """What hides the prefix tokens from a query that attends to the patches alone."""
        if not self.patches_only:
            return None
        seen = torch.zeros(layout.grid.cells(), dtype=heads.k.dtype, device=heads.k.device)
        return F.pad(seen, (layout.prefix(), 0), value=float("-inf"))  # (L)

    def project_qkv(self, tokens: Tensor) -> Qkv:
        """The learned query, and keys and values of all tokens."""
        q = self.q(self.query).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (1, H, 1, d)
        kv = self.kv(tokens).unflatten(-1, (2, self.heads, -1))  # (B, L, 2, H, d)
        k, v = kv.permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
        return Qkv(q.expand(k.shape[0], -1, -1, -1), k, v)

    def attend(self, heads: Qkv, layout: Layout) -> Tensor:
        bias = self.bias(heads, layout)
        mask = None if bias is None else bias.expand(1, 1, 1, -1)
        return F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)  # (B, 1, D)

    def output(self, gathered: Tensor) -> Tensor:
        x = self.project(gathered[:, 0])  # (B, D)
        return x + self.mlp(self.norm(x)) if self.has_mlp else x  # (B, D)

    def attention_weights(self, heads: Qkv, layout: Layout) -> Tensor:
        """The attention of the query (B, H, 1, L), zero for tokens that it does not see; rows sum to one."""
        return attention_weights(heads.q, heads.k, self.bias(heads, layout))

    def token_weights(self, tokens: Tensor, layout: Layout) -> Tensor:
        return self.attention_weights(self.project_qkv(tokens), layout).mean(dim=1)[:, 0]  # (B, L)


PoolConfig = Annotated[
    ClassPool | DistilledPool | MeanPool | ClassMeanPool | MeanAllPool | PrefixPool | AttentionPool, OpenUnion()
]
