"""Fewer tokens layer by layer (ToMe, arXiv 2210.09461), or all of them.

B images, L tokens (prefix + N patches), D width, H heads, d head width, r tokens that go into others.
"""

from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.attention import Attention
from vitral.models.base import Layout
from vitral.models.pool import AttentionPooling, ClassMeanPooling, MeanAllPooling, MeanPooling
from vitral.models.position import Learned1d, Learned2d
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit


class Merged(NamedTuple):
    """Tokens, and how many of the image's tokens each of them stands for."""

    tokens: Tensor  # (B, L, D)
    sizes: Tensor  # (B, L, 1)


class MergingKind(Config):
    """A way to go on with fewer tokens; the hooks of a kind that goes on with all."""

    def check(self, model: Vit | Resnet) -> None:
        """Refuse a model whose tokens cannot go on as fewer."""

    def removed(self, layout: Layout, depth: int) -> tuple[int, ...]:
        """How many tokens each layer takes out between its attention and its MLP."""
        return (0,) * depth

    def apply(self, tokens: Merged, keys: Tensor, removed: int, prefix: int) -> Merged:
        """The tokens without so many of them, which went into those whose keys (B, L, d) are most alike."""
        return tokens

    def pooled(self, pool: nn.Module, tokens: Merged, layout: Layout) -> Tensor:
        """What the model's pool reads of the tokens (B, D), each counted as many times as it stands for."""
        return pool(tokens.tokens, layout)


class NoMerging(MergingKind):
    """Every token goes all the way."""

    kind: Literal["none"] = "none"


class TokenMerging(MergingKind):
    """In each layer, patches that are most alike go on as one: their mean, which counts for all it stands for.

    The class token and registers are left alone. A layer has at most half of its patches go into the others.
    """

    kind: Literal["tome"] = "tome"
    per_layer: int = Field(ge=0)

    def check(self, model: Vit | Resnet) -> None:
        if isinstance(model, Resnet):
            raise refusal("a ResNet has no tokens to merge", "model.kind")
        if not isinstance(model.mixer, Attention):
            raise refusal(f"the {model.mixer.kind} mixer needs every token in its place", "model.mixer")
        if model.position.acts == "attention":
            message = f"{model.position.kind} positions need every token in its place inside attention"
            raise refusal(message, "model.position")
        if isinstance(model.position, Learned1d | Learned2d) and model.position.where != "stem":
            raise refusal("positions are added in every layer, to every token in its place", "model.position.where")

    def removed(self, layout: Layout, depth: int) -> tuple[int, ...]:
        found, left = [], layout.grid.cells()
        for _ in range(depth):
            found.append(min(self.per_layer, left // 2))
            left -= found[-1]
        return tuple(found)

    def apply(self, tokens: Merged, keys: Tensor, removed: int, prefix: int) -> Merged:
        return gone_into_others(tokens, alike(keys, removed, prefix))

    def pooled(self, pool: nn.Module, tokens: Merged, layout: Layout) -> Tensor:
        match pool:
            case MeanPooling():
                return pool.norm(mean(tokens, layout.prefix()))  # (B, D)
            case ClassMeanPooling():
                return torch.cat([tokens.tokens[:, 0], mean(tokens, layout.prefix())], dim=1)  # (B, 2 D)
            case MeanAllPooling():
                return mean(tokens, 0)  # (B, D)
            case AttentionPooling():
                return gather(pool, tokens)  # (B, D)
        return pool(tokens.tokens, layout)  # (B, D); the others read no patches


Merging = Annotated[NoMerging | TokenMerging, Field(discriminator="kind")]


def refusal(message: str, where: str) -> ConfigError:
    return ConfigError(
        f"tokens cannot be merged: {message}",
        code="config.unsupported",
        where=where,
        hint="leave merging out for this model",
    )


class Pairs(NamedTuple):
    """The places of tokens that go, and of those that they go into."""

    gone: Tensor  # (B, r)
    into: Tensor  # (B, r)


def alike(keys: Tensor, count: int, prefix: int) -> Pairs:
    """The pairs of patches with the most similar keys (B, L, d): bipartite soft matching.

    The patches stand alternately in two sets. Each of the first looks in the second for the one that is most like it,
    and the most similar of these pairs are taken. Several of the first may go into the same one of the second.
    """
    firsts, seconds = (torch.arange(start, keys.shape[1], 2, device=keys.device) for start in (prefix, prefix + 1))
    unit = F.normalize(keys, dim=-1)  # (B, L, d)
    cosines = unit.index_select(1, firsts) @ unit.index_select(1, seconds).mT  # (B, firsts, seconds)
    gone = cosines.amax(dim=-1).topk(count, dim=-1).indices  # (B, r), among the firsts
    into = rows(cosines, gone).argmax(dim=-1)  # (B, r), among the seconds
    return Pairs(firsts.take(gone), seconds.take(into))


def gone_into_others(tokens: Merged, pairs: Pairs) -> Merged:
    """The tokens that stay, in their order; what others go into is their mean, weighted by what they stand for."""
    (x, sizes), (gone, into), length = tokens, pairs, tokens.tokens.shape[1]
    place = torch.arange(length, device=x.device)[:, None]  # (L, 1)
    order = torch.where(place == gone[:, None], length, place).amax(dim=-1)  # (B, L), its own place if it stays
    stay = order.topk(length - gone.shape[1], dim=-1, largest=False).values  # (B, L - r), in order
    own, theirs = rows(sizes, stay), rows(sizes, gone)  # (B, L - r, 1), (B, r, 1)
    gained = torch.where(stay[..., None] == into[:, None], theirs.mT, 0.0)  # (B, L - r, r)
    whole = own + gained.sum(dim=-1, keepdim=True)  # (B, L - r, 1)
    mixed = (rows(x, stay) * own + gained @ rows(x, gone)) / whole  # (B, L - r, D)
    return Merged(mixed, whole)


def rows(x: Tensor, places: Tensor) -> Tensor:
    """The rows of x (B, L, D) at the places (B, n) of each image."""
    return x.take_along_dim(places[..., None], dim=1)  # (B, n, D)


def mean(tokens: Merged, first: int) -> Tensor:
    """The mean of the image's tokens (B, D) from a place on."""
    values, sizes = (each[:, first:] for each in tokens)
    return (values * sizes).sum(dim=1) / sizes.sum(dim=1)  # (B, D)


def gather(pool: AttentionPooling, tokens: Merged) -> Tensor:
    """What the query of the pool gathers, each token weighing as much as all those that it stands for."""
    q = pool.q(pool.query).unflatten(-1, (pool.heads, -1)).transpose(1, 2)  # (1, H, 1, d)
    k, v = pool.kv(tokens.tokens).unflatten(-1, (2, pool.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
    weight = tokens.sizes.log().mT[:, None]  # (B, 1, 1, L)
    found = F.scaled_dot_product_attention(q.expand(k.shape[0], -1, -1, -1), k, v, attn_mask=weight)  # (B, H, 1, d)
    x = pool.project(found.flatten(1))  # (B, D)
    return x + pool.mlp(pool.norm(x))  # (B, D)
