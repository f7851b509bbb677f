"""Weight folding: the same outputs from fewer operations.

B images, C channels, P x Q pixels a patch, D width, H heads, d head width.
No function modifies its arguments.
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

    def to_linear(self) -> nn.Linear:
        """A linear layer that holds these tensors, without a copy."""
        layer = nn.Linear(1, 1, device="meta")
        layer.weight, layer.bias = nn.Parameter(self.weight.contiguous()), nn.Parameter(self.bias.contiguous())
        layer.out_features, layer.in_features = self.weight.shape
        return layer


def affine(linear: nn.Linear) -> Affine:
    """The weight and bias of a linear layer; zeros where it has no bias."""
    weight = linear.weight.detach()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()
    return Affine(weight, bias)


def normalization_factors(scaling: Normalize, channels: int) -> tuple[Tensor, Tensor]:
    """Factor and offset of each channel, in float64: normalized = byte * factor + offset."""
    mean, std = (torch.tensor(each, dtype=torch.float64) for each in (scaling.mean, scaling.std))
    return (1 / (255 * std)).expand(channels), (-mean / std).expand(channels)  # each (C)


def channels_last(values: Tensor, channels: int, patch: Size) -> Tensor:
    """The values of patches (..., C P Q) in the order of pixels in memory, (..., P Q C)."""
    return values.unflatten(-1, (channels, *patch)).movedim(-3, -1).flatten(-3)


def fold_normalization(linear: nn.Linear, scaling: Normalize, channels: int, patch: Size) -> Affine:
    """Patch embedding of uint8 pixels (P Q C): normalization and the layer's map from (C P Q) in one."""
    weight, bias = (each.double() for each in affine(linear))  # (D, C P Q), (D)
    factor, offset = (
        each.repeat_interleave(patch.height * patch.width) for each in normalization_factors(scaling, channels)
    )
    folded = channels_last(weight * factor, channels, patch)  # (D, P Q C)
    return Affine(folded.to(linear.weight.dtype), (bias + weight @ offset).to(linear.weight.dtype))


def fold_layer_scale(linear: nn.Linear, scale: nn.Module) -> Affine:
    """The layer with the LayerScale after it folded in."""
    weight, bias = affine(linear)
    if not isinstance(scale, ChannelScale):
        return Affine(weight, bias)
    factor = scale.factor.detach()  # (D)
    return Affine(weight * factor[:, None], bias * factor)


def fold_norm(norm: nn.LayerNorm, linear: nn.Linear) -> Affine:
    """The layer with the weight and bias of the LayerNorm before it folded in."""
    weight, bias = affine(linear)
    shift = weight.double() @ norm.bias.detach().double()
    return Affine(weight * norm.weight.detach(), (bias + shift).to(bias.dtype))


def norm_without_affine(norm: nn.LayerNorm) -> nn.LayerNorm:
    """The same norm without weight and bias."""
    return nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)


class QkvAffine(NamedTuple):
    """The q, k and v projections of attention; the scale of the logits is folded into q."""

    q: Affine
    k: Affine
    v: Affine


def concat_affines(parts: Iterable[Affine]) -> Affine:
    """Several maps as one matrix product."""
    weights, biases = zip(*parts, strict=True)
    return Affine(torch.cat(weights), torch.cat(biases))


def split_qkv(heads: QkvProjection) -> QkvAffine:
    """The qkv projection as three maps. Where queries are normalized, `scale_norm` takes the scale instead."""
    whole = affine(heads.qkv)
    q, k, v = (Affine(*pair) for pair in zip(whole.weight.chunk(3), whole.bias.chunk(3), strict=True))
    scale = 1.0 if isinstance(heads.q_norm, nn.LayerNorm) else heads.head_width**-0.5
    return QkvAffine(Affine(q.weight * scale, q.bias * scale), k, v)


def scale_norm(norm: nn.LayerNorm, scale: float) -> nn.LayerNorm:
    """A norm whose output is multiplied by `scale`."""
    scaled = nn.LayerNorm(norm.normalized_shape, norm.eps)
    scaled.weight, scaled.bias = (nn.Parameter(each.detach() * scale) for each in (norm.weight, norm.bias))
    return scaled
