"""The layers of an inference graph: the model's own with weights folded, so that fewer operations remain.

Functions that fold do not modify their arguments.

B images, H x W pixels, C channels, P x Q pixels a patch, R x S patches, N = R S, L tokens, D width, H heads,
d head width.  All shapes but the batch are constants, so an exported graph has no shape arithmetic.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Normalize
from vitral.inference.graph.token_merging import MergedTokens, Merging
from vitral.models.attention import QkvProjection, SelfAttention
from vitral.models.base import Layout
from vitral.models.block import ChannelScale, EncoderBlock, PostNormBlock, PreNormBlock
from vitral.models.embed import PatchStem
from vitral.models.mlp import FeedForward, GatedFeedForward
from vitral.models.position import (
    AttentionPosition,
    RelativeBiasTable,
    RotaryPosition,
    RotaryPosition2d,
)
from vitral.models.resnet import StdConv2d, pad_same, standardize


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

    def chunk(self, count: int) -> list["Affine"]:
        """The map as several maps of equally many outputs."""
        return list(map(Affine, self.weight.chunk(count), self.bias.chunk(count)))


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


def split_qkv(heads: QkvProjection) -> list[Affine]:
    """The q, k and v projections, the scale of the logits in q. Where queries are normalized, `scale_norm` takes it."""
    q, k, v = affine(heads.qkv).chunk(3)
    scale = 1.0 if isinstance(heads.q_norm, nn.LayerNorm) else heads.head_width**-0.5
    return [Affine(q.weight * scale, q.bias * scale), k, v]


def scale_norm(norm: nn.LayerNorm, scale: float) -> nn.LayerNorm:
    """A norm whose output is multiplied by `scale`."""
    scaled = nn.LayerNorm(norm.normalized_shape, norm.eps)
    scaled.weight, scaled.bias = (nn.Parameter(each.detach() * scale) for each in (norm.weight, norm.bias))
    return scaled


class ConstantsModule(nn.Module):
    """A module with constant tensors, kept as buffers."""

    def add_constant(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value.detach().clone().contiguous())


def patchify(pixels: Tensor, image_size: Size, patch: Size) -> Tensor:
    """The patches of pixels (B, H, W, C), each flattened in memory order.

    The pixels are floats because engines transpose floats faster than bytes.
    """
    rows, columns = image_size.height // patch.height, image_size.width // patch.width
    tiles = pixels.flatten(2).unflatten(2, (columns, -1)).unflatten(1, (rows, patch.height))  # (B, R, P, S, Q C)
    return tiles.transpose(2, 3).flatten(3).flatten(1, 2)  # (B, N, P Q C)


class LinearStem(ConstantsModule):
    """Patch embedding of uint8 pixels as one matrix product, normalization folded in."""

    weight: Tensor  # (D, P Q C)

    def __init__(self, stem: PatchStem, normalize: Normalize, image_size: Size, channels: int) -> None:
        super().__init__()
        self.image_size, self.patch = image_size, stem.patch
        folded = fold_normalization(stem.project, normalize, channels, stem.patch)
        self.add_constant("weight", folded.weight)
        self.bias = folded.bias  # added with the position embeddings

    def forward(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels.float(), self.image_size, self.patch)  # (B, N, P Q C)
        return F.linear(patches, self.weight)  # (B, N, D)


class LayerNormStem(ConstantsModule):
    """Patch embedding with a LayerNorm before it, which needs normalized pixels."""

    factor: Tensor  # (P Q C)
    offset: Tensor  # (P Q C)

    def __init__(self, stem: PatchStem, normalize: Normalize, image_size: Size, channels: int) -> None:
        super().__init__()
        self.image_size, self.patch = image_size, stem.patch
        cells = stem.patch.height * stem.patch.width
        for name, each in zip(("factor", "offset"), normalization_factors(normalize, channels), strict=True):
            self.add_constant(name, each.float().repeat(cells))
        self.before, self.project, self.after = stem.before, stem.project, stem.after
        assert isinstance(self.before, nn.LayerNorm)
        for part, name in ((self.before, "weight"), (self.before, "bias"), (self.project, "weight")):
            ordered = channels_last(getattr(part, name).detach(), channels, stem.patch)
            setattr(part, name, nn.Parameter(ordered.contiguous()))
        self.bias = torch.zeros(len(self.project.weight))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels.float(), self.image_size, self.patch)  # (B, N, P Q C)
        return self.after(self.project(self.before(patches * self.factor + self.offset)))  # (B, N, D)


class NormalizePixels(ConstantsModule):
    """Uint8 pixels to normalized images (B, C, H, W). A padded convolution cannot have the mean folded in."""

    factor: Tensor  # (C)
    offset: Tensor  # (C)

    def __init__(self, normalize: Normalize, channels: int) -> None:
        super().__init__()
        for name, each in zip(("factor", "offset"), normalization_factors(normalize, channels), strict=True):
            self.add_constant(name, each.float())

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() * self.factor + self.offset).permute(0, 3, 1, 2)  # (B, C, H, W)


class StandardizedConv(ConstantsModule):
    """A convolution whose kernels are standardized once, at construction."""

    weight: Tensor  # (outputs, inputs, k, k)

    def __init__(self, conv: StdConv2d) -> None:
        super().__init__()
        self.kernel, self.stride = conv.kernel, conv.stride
        self.add_constant("weight", standardize(conv.weight, conv.how))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(pad_same(x, self.kernel, self.stride), self.weight, stride=self.stride)


def fold_standardization(part: nn.Module) -> None:
    """Replace convolutions that standardize their kernels in every forward pass."""
    for name, child in part.named_children():
        if isinstance(child, StdConv2d):
            setattr(part, name, StandardizedConv(child))
        else:
            fold_standardization(child)


class FusedQkv(nn.Module):
    """Queries, keys and values by one matrix product: the fastest in torch."""

    def __init__(self, qkv: Sequence[Affine]) -> None:
        super().__init__()
        weights, biases = zip(*qkv, strict=True)
        self.qkv = Affine(torch.cat(weights), torch.cat(biases)).to_linear()

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values (B, L, H d)."""
        return self.qkv(x).chunk(3, dim=-1)

    def separate(self) -> "SeparateQkv":
        """The same as three products."""
        return SeparateQkv(affine(self.qkv).chunk(3))


class SeparateQkv(nn.Module):
    """Queries, keys and values by three matrix products: the fastest in ONNX Runtime and OpenVINO."""

    def __init__(self, qkv: Sequence[Affine]) -> None:
        super().__init__()
        self.q, self.k, self.v = (part.to_linear() for part in qkv)

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values (B, L, H d)."""
        return self.q(x), self.k(x), self.v(x)

    def separate(self) -> "SeparateQkv":
        return self


class FirstTokensQkv(SeparateQkv):
    """Queries of the first `keep` tokens, keys and values of all."""

    def __init__(self, qkv: Sequence[Affine], keep: int) -> None:
        super().__init__(qkv)
        self.keep = keep

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Queries (B, keep, H d), keys and values (B, L, H d)."""
        return self.q(x[:, : self.keep]), self.k(x), self.v(x)


class FullAttention(ConstantsModule):
    """Attention over all tokens. The scale of the logits is in the weights, rotary angles are constants."""

    cos: Tensor  # (L, d), with rotary positions only
    sin: Tensor

    def __init__(self, mixer: SelfAttention, layout: Layout, keep: int) -> None:
        super().__init__()
        heads, qkv = mixer.heads, split_qkv(mixer.heads)
        self.heads, self.head_width = heads.heads, heads.head_width
        self.qkv: FusedQkv | SeparateQkv = FusedQkv(qkv) if keep == layout.length() else FirstTokensQkv(qkv, keep)
        self.q_norm, self.k_norm, self.project = heads.q_norm, heads.k_norm, mixer.project
        if isinstance(self.q_norm, nn.LayerNorm):
            self.q_norm = scale_norm(self.q_norm, self.head_width**-0.5)
        self.rotary = isinstance(heads.relation, RotaryPosition2d)
        if isinstance(heads.relation, RotaryPosition2d):
            angles = heads.relation.angles(layout.grid, self.head_width, torch.zeros(1))  # (N, d/2)
            first = (0, 0, layout.prefix(), 0)  # prefix tokens are not rotated: cos 1, sin 0
            self.add_constant("cos", F.pad(angles.cos().repeat(1, 2), first, value=1.0))
            self.add_constant("sin", F.pad(torch.cat([-angles.sin(), angles.sin()], dim=1), first))

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys (B, H, tokens, d) with the rotary embedding applied."""
        if not self.rotary:
            return x
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        return x * cos + torch.cat([second, first], dim=-1) * sin

    def forward(self, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The attention output (B, keep, D) and the keys (B, H, L, d). `bias` (B, 1, 1, L) is added to the logits."""
        q, k, v = (part.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2) for part in self.qkv(x))
        q, k = self.rotate(self.q_norm(q)), self.rotate(self.k_norm(k))  # each (B, H, ., d)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)  # (B, H, keep, d)
        return self.project(mixed.transpose(1, 2).flatten(2)), k


class FirstTokensAttention(ConstantsModule):
    """Attention of the first `keep` tokens, without computing the keys and values of all tokens.

    A logit is q (K x) = (q K) x, and the output is V applied to the weighted mean of x: so K and V are applied to a few
    vectors instead of every token. The bias of the keys shifts all logits of a query alike, and cancels in the softmax.
    """

    k: Tensor  # (H, d, D)
    v: Tensor  # (H, D, d)
    v_bias: Tensor  # (H d)

    def __init__(self, mixer: SelfAttention, keep: int) -> None:
        super().__init__()
        heads, (q, k, v) = mixer.heads, split_qkv(mixer.heads)
        self.heads, self.head_width, self.keep, self.project = heads.heads, heads.head_width, keep, mixer.project
        self.q = q.to_linear()
        self.add_constant("k", k.weight.unflatten(0, (self.heads, self.head_width)))
        self.add_constant("v", v.weight.unflatten(0, (self.heads, self.head_width)).mT)
        self.add_constant("v_bias", v.bias)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The attention output (B, keep, D). `bias` (B, 1, 1, L) is added to the logits."""
        q = self.q(x[:, : self.keep]).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # (B, H, keep, d)
        queries = q @ self.k  # (B, H, keep, D)
        logits = queries @ x.mT[:, None]  # (B, H, keep, L)
        weights = (logits if bias is None else logits + bias).softmax(dim=-1)
        means = weights @ x[:, None]  # (B, H, keep, D)
        values = (means @ self.v).transpose(1, 2).flatten(2) + self.v_bias  # (B, keep, H d)
        return self.project(values)


class ModelMixer(nn.Module):
    """The model's own mixer, for images of one size."""

    def __init__(self, mixer: nn.Module, layout: Layout, keep: int) -> None:
        super().__init__()
        self.mixer, self.layout, self.keep = mixer, layout, keep

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.mixer(x, self.layout, self.keep)  # (B, keep, D)


def build_mixer(mixer: nn.Module, layout: Layout, keep: int) -> FullAttention | FirstTokensAttention | ModelMixer:
    """The cheapest equivalent of a mixer."""
    if not isinstance(mixer, SelfAttention) or not is_plain(mixer):
        return ModelMixer(mixer, layout, keep)
    relation, normed = mixer.heads.relation, isinstance(mixer.heads.k_norm, nn.LayerNorm)
    if keep <= layout.prefix() and not normed and not isinstance(relation, RotaryPosition | RelativeBiasTable):
        return FirstTokensAttention(mixer, keep)
    full = mixer.config.checked_window(layout.grid, mixer.layer) == layout.grid
    if (full or keep <= layout.prefix()) and type(relation) in {AttentionPosition, RotaryPosition2d}:
        return FullAttention(mixer, layout, keep)
    return ModelMixer(mixer, layout, keep)


def is_plain(mixer: SelfAttention) -> bool:
    """Whether attention has nothing that the folded layers do not know."""
    if type(mixer) is not SelfAttention:
        return False  # it hides some tokens from others
    scaled = isinstance(mixer.heads.q_norm, nn.Identity | nn.LayerNorm) and mixer.scale is None
    return scaled and not mixer.heads.norm_all and isinstance(mixer.output_norm, nn.Identity)


def fold_scales(block: EncoderBlock) -> None:
    """Fold LayerScale into the linear layers before it, where there are such layers."""
    layers = ((block.mixer_branch, block.mixer, "project"), (block.mlp_branch, block.mlp, "contract"))
    for branch, part, name in layers:
        linear = getattr(part, name, None)
        if isinstance(part, SelfAttention | FeedForward | GatedFeedForward) and isinstance(linear, nn.Linear):
            setattr(part, name, fold_layer_scale(linear, branch.scale).to_linear())
            branch.scale = nn.Identity()


class ModelBlock(nn.Module):
    """The model's own block, for images of one size."""

    def __init__(self, block: nn.Module, layout: Layout, keep: int) -> None:
        super().__init__()
        self.block, self.layout, self.keep = block, layout, keep

    def forward(self, x: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.block(x, self.layout, self.keep), sizes  # (B, keep, D)


class Block(nn.Module):
    """One encoder block: attention and MLP on residual paths, token merging between them.

    `sizes` (B, L, 1) counts the merged tokens of each token; it is None until tokens are merged.
    """

    def __init__(
        self, block: PreNormBlock | PostNormBlock, layout: Layout, keep: int, merging: Merging, removed: int
    ) -> None:
        super().__init__()
        fold_scales(block)
        self.pre_norm, self.keep, self.prefix = isinstance(block, PreNormBlock), keep, layout.prefix()
        self.drops_tokens = keep < layout.length()
        self.mixer = build_mixer(block.mixer, layout, keep)
        self.mixer_scale, self.mlp_scale = block.mixer_branch.scale, block.mlp_branch.scale
        self.mixer_norm, self.mlp_norm, self.mlp = block.mixer_norm, block.mlp_norm, block.mlp
        self.merging, self.removed = merging, removed
        assert not removed or isinstance(self.mixer, FullAttention), "merging needs the keys of full attention"

    def forward(self, x: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mixed = self.mixer(self.mixer_norm(x) if self.pre_norm else x, None if sizes is None else size_bias(sizes))
        output, keys = mixed if isinstance(mixed, tuple) else (mixed, None)
        x = (x[:, : self.keep] if self.drops_tokens else x) + self.mixer_scale(output)  # (B, keep, D)
        x = x if self.pre_norm else self.mixer_norm(x)
        if self.removed:
            assert keys is not None
            start = torch.ones_like(x[..., :1]) if sizes is None else sizes  # (B, L, 1)
            x, sizes = self.merging.apply(MergedTokens(x, start), keys.mean(dim=1), self.removed, self.prefix)
        y = self.mlp_scale(self.mlp(self.mlp_norm(x) if self.pre_norm else x))  # (B, L, D)
        return (x + y if self.pre_norm else self.mlp_norm(x + y)), sizes


def size_bias(sizes: Tensor) -> Tensor:
    """Proportional attention of ToMe: a token of size s counts as s tokens, which adds log s to its logits."""
    return sizes.log().mT[:, None]  # (B, 1, 1, L)
