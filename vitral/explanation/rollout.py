"""Attention rollout: attention followed through all layers, from the answer back to the patches (arXiv 2005.00928).

B images, T tokens, H heads, R x S patches.
"""

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from vitral.explanation.class_probability import eval_mode
from vitral.explanation.trace import has_attention, iterate_layers, require_vit
from vitral.models.base import Layout, Model


def rollout(attentions: Iterable[Tensor]) -> Tensor:
    """How much of each token of the first layer is in each token of the last (B, T, T); rows sum to one.

    Takes the attention (B, H, T, T) of one layer after the other and keeps none of it.
    """
    layers = iter(attentions)
    return reduce(extend_rollout, layers, with_residual(next(layers)))


def identity_rollout(length: int, like: Tensor) -> Tensor:
    """The rollout (1, T, T) of so many tokens before the first layer: each is itself."""
    return torch.eye(length, dtype=like.dtype, device=like.device)[None]


def extend_rollout(joint: Tensor, attention: Tensor) -> Tensor:
    """The rollout (B, T, T) one layer on."""
    return with_residual(attention) @ joint


def with_residual(attention: Tensor) -> Tensor:
    """A layer with its residual path: half the mean of the heads, half each token itself (appendix D.8)."""
    mean = attention.mean(dim=1)  # (B, T, T)
    mean.diagonal(dim1=1, dim2=2).add_(1)
    return mean / mean.sum(dim=2, keepdim=True)


@torch.no_grad()
def rollout_map(model: Model, images: Tensor) -> Tensor:
    """How much of each patch reaches the answer (B, R, S); of no size for a model whose layers do not attend."""
    if not has_attention(model):
        return images.new_empty(len(images), 0, 0)
    reader = require_vit(model)
    joint = identity_rollout(reader.layout(images).length(), images)  # (1, T, T)
    with eval_mode(model):
        for step in iterate_layers(model, images):
            joint = extend_rollout(joint, step.attention())  # (B, T, T)
        read = reader.pool.token_weights(reader.norm(step.after), step.layout)  # (B, T)
    return rollout_to_patches(read, joint, step.layout)


def rollout_to_patches(read: Tensor, joint: Tensor, layout: Layout) -> Tensor:
    """What the answer reads (B, T) of the last layer, traced to the patches (B, R, S) of the first."""
    traced = (read[:, None] @ joint)[:, 0]  # (B, T)
    return traced[:, layout.prefix() :].unflatten(1, layout.grid)
