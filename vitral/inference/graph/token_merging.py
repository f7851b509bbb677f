"""Token merging (ToMe, arXiv 2210.09461).

B images, L tokens (prefix + N patches), D width, H heads, d head width, r tokens merged into others.
"""

from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.attention import Attention
from vitral.models.base import Layout
from vitral.models.block import PostNorm, PreNorm
from vitral.models.pool import AttentionPooling, ClassMeanPooling, MeanAllPooling, MeanPooling
from vitral.models.position import Learned1d, Learned2d
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit


class MergedTokens(NamedTuple):
    """Tokens, and how many original tokens each of them represents."""

    tokens: Tensor  # (B, L, D)
    sizes: Tensor  # (B, L, 1)


class BaseMerging(Config):
    """The config of a merging method. By default it keeps all tokens."""

    def check(self, model: Vit | Resnet) -> None:
        """Raise ConfigError for a model whose tokens cannot be merged."""

    def removed_per_layer(self, layout: Layout, depth: int) -> tuple[int, ...]:
        """How many tokens each layer removes between attention and MLP."""
        return (0,) * depth

    def apply(self, tokens: MergedTokens, keys: Tensor, removed: int, prefix: int) -> MergedTokens:
        """Merge `removed` tokens into those with the most similar keys (B, L, d)."""
        return tokens

    def pool(self, pool: nn.Module, tokens: MergedTokens, layout: Layout) -> Tensor:
        """The pooled features (B, D), each token weighted by its size."""
        return pool(tokens.tokens, layout)


class NoMerging(BaseMerging):
    """All tokens are kept."""

    kind: Literal["none"] = "none"


class TokenMerging(BaseMerging):
    """Each layer merges its `per_layer` most similar pairs of patches into their mean, weighted by size.

    The class token and registers are kept. A layer merges at most half of its patches.
    """

    kind: Literal["tome"] = "tome"
    per_layer: int = Field(ge=0)

    def check(self, model: Vit | Resnet) -> None:
        if isinstance(model, Resnet):
            raise unsupported("a ResNet has no tokens to merge", "model.kind")
        if not isinstance(model.mixer, Attention):
            raise unsupported(f"the {model.mixer.kind} mixer needs every token in its position", "model.mixer")
        if not isinstance(model.block, PreNorm | PostNorm):
            raise unsupported(f"{model.block.kind} blocks have no place for it", "model.block")
        if (model.mixer.scale, model.mixer.output_norm) != ("1/sqrt(d)", False) or model.norm.kind != "layer_norm":
            raise unsupported("the attention of this model is not the plain one", "model.mixer")
        if model.position.applies_to == "attention":
            message = f"{model.position.kind} positions act inside attention and need every token in its position"
            raise unsupported(message, "model.position")
        if isinstance(model.position, Learned1d | Learned2d) and model.position.where != "stem":
            raise unsupported("position embeddings are added in every layer", "model.position.where")

    def removed_per_layer(self, layout: Layout, depth: int) -> tuple[int, ...]:
        removed, left = [], layout.grid.cells()
        for _ in range(depth):
            removed.append(min(self.per_layer, left // 2))
            left -= removed[-1]
        return tuple(removed)

    def apply(self, tokens: MergedTokens, keys: Tensor, removed: int, prefix: int) -> MergedTokens:
        return merge_tokens(tokens, bipartite_soft_matching(keys, removed, prefix))

    def pool(self, pool: nn.Module, tokens: MergedTokens, layout: Layout) -> Tensor:
        match pool:
            case MeanPooling():
                return pool.norm(weighted_mean(tokens, layout.prefix()))  # (B, D)
            case ClassMeanPooling():
                return torch.cat([tokens.tokens[:, 0], weighted_mean(tokens, layout.prefix())], dim=1)  # (B, 2 D)
            case MeanAllPooling():
                return pool.norm(weighted_mean(tokens, 0))  # (B, D)
            case AttentionPooling():
                first = layout.prefix() if pool.patches_only else 0
                return attention_pool(pool, MergedTokens(*(each[:, first:] for each in tokens)))  # (B, D)
        return pool(tokens.tokens, layout)  # (B, D); the other poolings read no patches


Merging = Annotated[NoMerging | TokenMerging, OpenUnion()]


def unsupported(message: str, where: str) -> ConfigError:
    return ConfigError(
        f"tokens cannot be merged: {message}",
        code="config.unsupported",
        where=where,
        hint="turn token merging off for this model",
    )


class TokenPairs(NamedTuple):
    """Indices of the tokens to remove, and of those that they are merged into."""

    src: Tensor  # (B, r)
    dst: Tensor  # (B, r)


def bipartite_soft_matching(keys: Tensor, count: int, prefix: int) -> TokenPairs:
    """The pairs of patches with the most similar keys (B, L, d): bipartite soft matching.

    Patches are assigned alternately to two sets. Each of the first set is paired with the most similar of the second,
    and the `count` most similar pairs are returned. Several of the first may share one of the second.
    """
    firsts, seconds = (torch.arange(start, keys.shape[1], 2, device=keys.device) for start in (prefix, prefix + 1))
    unit = F.normalize(keys, dim=-1)  # (B, L, d)
    cosines = unit.index_select(1, firsts) @ unit.index_select(1, seconds).mT  # (B, firsts, seconds)
    src = cosines.amax(dim=-1).topk(count, dim=-1).indices  # (B, r), among the firsts
    dst = gather_rows(cosines, src).argmax(dim=-1)  # (B, r), among the seconds
    return TokenPairs(firsts.take(src), seconds.take(dst))


def merge_tokens(tokens: MergedTokens, pairs: TokenPairs) -> MergedTokens:
    """The remaining tokens in order, each the mean of what was merged into it, weighted by size."""
    (x, sizes), (src, dst), length = tokens, pairs, tokens.tokens.shape[1]
    index = torch.arange(length, device=x.device)[:, None]  # (L, 1)
    order = torch.where(index == src[:, None], length, index).amax(dim=-1)  # (B, L), its own index if it is kept
    kept = order.topk(length - src.shape[1], dim=-1, largest=False).values  # (B, L - r), in order
    own, theirs = gather_rows(sizes, kept), gather_rows(sizes, src)  # (B, L - r, 1), (B, r, 1)
    gained = torch.where(kept[..., None] == dst[:, None], theirs.mT, 0.0)  # (B, L - r, r)
    whole = own + gained.sum(dim=-1, keepdim=True)  # (B, L - r, 1)
    mixed = (gather_rows(x, kept) * own + gained @ gather_rows(x, src)) / whole  # (B, L - r, D)
    return MergedTokens(mixed, whole)


def gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """The rows of x (B, L, D) at the indices (B, n) of each image."""
    return x.take_along_dim(indices[..., None], dim=1)  # (B, n, D)


def weighted_mean(tokens: MergedTokens, first: int) -> Tensor:
    """The mean of the tokens from index `first` on (B, D), weighted by size."""
    values, sizes = (each[:, first:] for each in tokens)
    return (values * sizes).sum(dim=1) / sizes.sum(dim=1)  # (B, D)


def attention_pool(pool: AttentionPooling, tokens: MergedTokens) -> Tensor:
    """Attention pooling, each token weighted by its size."""
    q = pool.q(pool.query).unflatten(-1, (pool.heads, -1)).transpose(1, 2)  # (1, H, 1, d)
    k, v = pool.kv(tokens.tokens).unflatten(-1, (2, pool.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
    weight = tokens.sizes.log().mT[:, None]  # (B, 1, 1, L)
    mixed = F.scaled_dot_product_attention(q.expand(k.shape[0], -1, -1, -1), k, v, attn_mask=weight)  # (B, H, 1, d)
    return pool.output(mixed.flatten(1)[:, None])  # (B, D)
