"""Attention followed through all layers: rollout, and relevance for a class.

B images, T tokens, D width, H heads, d head width, K classes, R x S patches.
Rollout multiplies attention (arXiv 2005.00928; appendix D.8). Relevance weights it by its gradient: the rule of arXiv
2012.09838, with attention itself in place of the relevance propagated through each layer, as in arXiv 2103.15679 for
encoders.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.core.errors import ConfigError
from vitral.explanation.trace import check_class, has_attention, require_vit, run_layers
from vitral.models.base import Layout, Model
from vitral.models.hooks import AttentionRecord, eval_mode
from vitral.models.pool import AttentionPooling
from vitral.models.vit import VisionTransformer


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


def rollout_to_patches(read: Tensor, joint: Tensor, layout: Layout) -> Tensor:
    """The pooling weights (B, T) of the last layer, traced back to the patches (B, R, S)."""
    traced = (read[:, None] @ joint)[:, 0]  # (B, T)
    return traced[:, layout.prefix() :].unflatten(1, layout.grid)


class Readout(NamedTuple):
    """The output, and how it is pooled from the tokens of the last layer."""

    features: Tensor  # (B, T, D), the tokens after the last layer and its norm
    logits: Tensor  # (B, K)
    shares: Tensor  # (B, T), the pooling weights of the tokens; rows sum to one
    recordings: tuple[AttentionRecord, ...]  # of an attention pool; empty for other pools


def relevance(model: Model, images: Tensor, targets: Sequence[int]) -> Tensor:
    """The relevance of each patch for a class of its image (B, R, S); empty for a model without attention.

    One forward and one backward pass; no gradient of a weight is computed.
    """
    if len(targets) != len(images):
        message = f"expected a class for each of {len(images)} images, got {len(targets)}"
        raise ConfigError(message, code="config.wrong_count", where="targets", hint="pass one for each image")
    for target in targets:
        check_class(model, target)
    if not has_attention(model):
        return images.new_empty(len(images), 0, 0)
    reader = require_vit(model)
    with eval_mode(model), torch.inference_mode(False), torch.enable_grad():
        layout = reader.layout(images)
        recordings: list[tuple[AttentionRecord, ...]] = []
        for step in run_layers(reader, embed_with_grad(reader, images, layout), layout):
            recordings.append(step.recordings)
        return propagate_relevance(recordings, read_out(reader, step.after, layout), targets, layout)


def embed_with_grad(model: VisionTransformer, images: Tensor, layout: Layout) -> Tensor:
    """The input tokens of the first layer (B, T, D), with gradients from here on."""
    with torch.no_grad():
        tokens = model.embed(images, layout)
    return tokens.requires_grad_()


def read_out(model: VisionTransformer, tokens: Tensor, layout: Layout) -> Readout:
    """The output from the tokens (B, T, D) of the last layer."""
    pool, normed = model.pool, model.norm(tokens)  # (B, T, D)
    with torch.no_grad():
        shares = pool.token_weights(normed, layout)  # (B, T)
    if not isinstance(pool, AttentionPooling):
        return Readout(normed, model.head(pool(normed, layout)), shares, ())
    heads = pool.project_qkv(normed)
    gathered = pool.attend(heads, layout)  # (B, 1, D)
    recording = AttentionRecord(pool, heads, layout, gathered)
    return Readout(normed, model.head(pool.output(gathered)), shares, (recording,))


def propagate_relevance(
    recordings: Sequence[tuple[AttentionRecord, ...]], readout: Readout, targets: Sequence[int], layout: Layout
) -> Tensor:
    """Relevance of the patches (B, R, S) for the targets, propagated from the last layer back to the first.

    The identity path of a pooled token is left out: a class token is no patch, and a patch would dominate the rest.
    """
    chosen = readout.logits[range(len(targets)), targets].sum()
    layers = [*recordings, readout.recordings] if readout.recordings else [*recordings]
    gradients = list(torch.autograd.grad(chosen, [record.attended for layer in layers for record in layer]))
    with torch.no_grad():
        supports = (
            torch.stack([positive_attention(record, gradients.pop()) for record in reversed(layer)]).sum(dim=0)
            for layer in reversed(layers)  # branches side by side add up
        )
        read = next(supports) if readout.recordings else readout.shares[:, None]  # (B, 1, T)
        gathered = torch.zeros_like(read)
        for found in supports:
            gathered = gathered + (read + gathered) @ found
    return gathered[:, 0, layout.prefix() :].unflatten(1, layout.grid)


def positive_attention(record: AttentionRecord, gradient: Tensor) -> Tensor:
    """The positive part of attention times its gradient, averaged over the heads (B, queries, T).

    The gradient of the attention follows from that of the mixed values (B, queries, H d), so that no kernel has to keep
    the attention.
    """
    heads = record.heads.v.shape[1]
    pull = gradient.unflatten(2, (heads, -1)).transpose(1, 2) @ record.heads.v.mT  # (B, H, queries, T)
    return pull.mul_(record.attention_weights()).clamp_(min=0).mean(dim=1)
