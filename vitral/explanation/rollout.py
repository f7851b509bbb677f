"""Attention rollout: attention multiplied through all layers (arXiv 2005.00928; appendix D.8).

B images, T tokens, H heads, R x S patches.
"""

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from vitral.explanation.trace import has_attention, iterate_layers, require_vit
from vitral.models.base import Layout, Model
from vitral.models.hooks import eval_mode


def rollout(attentions: Iterable[Tensor]) -> Tensor:
    """How much of each token of the first layer is in each token of the last (B, T, T); rows sum to one.

    Consumes the attention (B, H, T, T) of one layer after the other.
    """
    layers = iter(attentions)
    return reduce(extend_rollout, layers, with_residual(next(layers)))


def identity_rollout(length: int, like: Tensor) -> Tensor:
    """The rollout (1, T, T) before the first layer."""
    return torch.eye(length, dtype=like.dtype, device=like.device)[None]


def extend_rollout(joint: Tensor, attention: Tensor) -> Tensor:
    """The rollout (B, T, T) after one more layer."""
    return with_residual(attention) @ joint


def with_residual(attention: Tensor) -> Tensor:
    """A layer with its residual path: half the mean of the heads, half each token itself (appendix D.8)."""
    mean = attention.mean(dim=1)  # (B, T, T)
    mean.diagonal(dim1=1, dim2=2).add_(1)
    return mean / mean.sum(dim=2, keepdim=True)


@torch.no_grad()
def rollout_map(model: Model, images: Tensor) -> Tensor:
    """How much of each patch reaches the output (B, R, S); empty for a model without attention."""
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
    """The pooling weights (B, T) of the last layer, traced back to the patches (B, R, S)."""
    traced = (read[:, None] @ joint)[:, 0]  # (B, T)
    return traced[:, layout.prefix() :].unflatten(1, layout.grid)
