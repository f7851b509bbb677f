"""Weights with the work around them worked in: the same answers from fewer steps.

B images, C channels, P x Q pixels a patch, D width, H heads, d head width.
No function changes what it is given; what nothing is worked into comes back as it is.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.attention import QkvProjection
from vitral.models.block import ChannelScale


class Affine(NamedTuple):
    """x -> weight x + bias."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor  # (outputs)

    def layer(self) -> nn.Linear:
        """The map as a layer that holds these very tensors."""
        layer = nn.Linear(1, 1, device="meta")
        layer.weight, layer.bias = nn.Parameter(self.weight.contiguous()), nn.Parameter(self.bias.contiguous())
        layer.out_features, layer.in_features = self.weight.shape
        return layer


def affine(linear: nn.Linear) -> Affine:
    """What a linear layer does, with a bias of zeros where it has none."""
    weight = linear.weight.detach()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()
    return Affine(weight, bias)


def scaled_bytes(scaling: Normalize, channels: int) -> tuple[Tensor, Tensor]:
    """The factor and the offset of each channel, in float64, that make of a byte what the model was trained on."""
    mean, deviation = (torch.tensor(each, dtype=torch.float64) for each in (scaling.mean, scaling.std))
    return (1 / (255 * deviation)).expand(channels), (-mean / deviation).expand(channels)  # each (C)


def channels_last(values: Tensor, channels: int, patch: Size) -> Tensor:
    """What belongs to the numbers of a patch (..., C P Q), in the order (..., P Q C) in which pixels lie in memory."""
    return values.unflatten(-1, (channels, *patch)).movedim(-3, -1).flatten(-3)


def patch_map(linear: nn.Linear, scaling: Normalize, channels: int, patch: Size) -> Affine:
    """The map from a patch of bytes (P Q C) that equals scaling its pixels and then the layer's map from (C P Q)."""
    weight, bias = (each.double() for each in affine(linear))  # (D, C P Q), (D)
    factor, offset = (each.repeat_interleave(patch.height * patch.width) for each in scaled_bytes(scaling, channels))
    folded = channels_last(weight * factor, channels, patch)  # (D, P Q C)
    return Affine(folded.to(linear.weight.dtype), (bias + weight @ offset).to(linear.weight.dtype))


def with_scale(linear: nn.Linear, scale: nn.Module) -> Affine:
    """The layer with the factors of a branch after it."""
    weight, bias = affine(linear)
    if not isinstance(scale, ChannelScale):
        return Affine(weight, bias)
    factor = scale.factor.detach()  # (D)
    return Affine(weight * factor[:, None], bias * factor)


def behind(norm: nn.LayerNorm, linear: nn.Linear) -> Affine:
    """The layer with the weights of a norm before it, which needs none any more."""
    weight, bias = affine(linear)
    shift = weight.double() @ norm.bias.detach().double()
    return Affine(weight * norm.weight.detach(), (bias + shift).to(bias.dtype))


def bare(norm: nn.LayerNorm) -> nn.LayerNorm:
    """A norm without weights."""
    return nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)


class Projection(NamedTuple):
    """The parts of attention's first layer, the queries divided by the root of the head width already."""

    q: Affine
    k: Affine
    v: Affine


def joined(parts: Iterable[Affine]) -> Affine:
    """Several maps as one, which is one large product instead of several."""
    weights, biases = zip(*parts, strict=True)
    return Affine(torch.cat(weights), torch.cat(biases))


def projection(heads: QkvProjection) -> Projection:
    """Attention's first layer, taken apart. Where queries are normalized, the norm has to take the scale instead."""
    whole = affine(heads.qkv)
    q, k, v = (Affine(*pair) for pair in zip(whole.weight.chunk(3), whole.bias.chunk(3), strict=True))
    scale = 1.0 if isinstance(heads.q_norm, nn.LayerNorm) else heads.head_width**-0.5
    return Projection(Affine(q.weight * scale, q.bias * scale), k, v)


def scaled_norm(norm: nn.LayerNorm, scale: float) -> nn.LayerNorm:
    """A norm that gives so many times as much."""
    found = nn.LayerNorm(norm.normalized_shape, norm.eps)
    found.weight, found.bias = (nn.Parameter(each.detach() * scale) for each in (norm.weight, norm.bias))
    return found
