"""The layers of a graph: what the model's own do, shaped for inference.

B images, H x W pixels, C channels, P x Q pixels a patch, R x S patches, N = R S, L tokens, D width, H heads,
d head width.  Shapes but the batch's are constants, so that an exported graph computes none of them.

The blocks of a graph: attention and MLP on their residual paths, and between them the place where tokens merge.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Normalize
from vitral.inference.graph.folding import (
    Affine,
    Projection,
    channels_last,
    joined,
    patch_map,
    projection,
    scaled_bytes,
    scaled_norm,
    with_scale,
)
from vitral.inference.graph.token_merging import Merged, Merging
from vitral.models.attention import SelfAttention
from vitral.models.base import Layout
from vitral.models.block import EncoderBlock, PreNormBlock
from vitral.models.embed import PatchStem
from vitral.models.mlp import FeedForward, GatedFeedForward
from vitral.models.position import AttentionPosition, RotaryPosition2d, rotary_angles
from vitral.models.resnet import StdConv2d, pad_same, standardize


class Held(nn.Module):
    """A part with tensors that are constants of the graph."""

    def hold(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value.detach().clone().contiguous())


def cut(pixels: Tensor, image: Size, patch: Size) -> Tensor:
    """Every patch of pixels (B, H, W, C) as one vector, in the order in which they lie in memory.

    Engines move floats quicker than bytes, though there is four times as much of them.
    """
    rows, columns = image.height // patch.height, image.width // patch.width
    tiles = pixels.flatten(2).unflatten(2, (columns, -1)).unflatten(1, (rows, patch.height))  # (B, R, P, S, Q C)
    return tiles.transpose(2, 3).flatten(3).flatten(1, 2)  # (B, N, P Q C)


class LinearStem(Held):
    """Bytes to patch tokens by one map: the scaling is in it."""

    weight: Tensor  # (D, P Q C)

    def __init__(self, stem: PatchStem, scaling: Normalize, image: Size, channels: int) -> None:
        super().__init__()
        self.image, self.patch = image, stem.patch
        folded = patch_map(stem.project, scaling, channels, stem.patch)
        self.hold("weight", folded.weight)
        self.bias = folded.bias  # goes into the positions

    def forward(self, pixels: Tensor) -> Tensor:
        patches = cut(pixels.float(), self.image, self.patch)  # (B, N, P Q C)
        return F.linear(patches, self.weight)  # (B, N, D)


class NormedStem(Held):
    """Bytes to patch tokens with norms around the map: those of the pixels have to see them scaled."""

    factor: Tensor  # (P Q C)
    offset: Tensor  # (P Q C)

    def __init__(self, stem: PatchStem, scaling: Normalize, image: Size, channels: int) -> None:
        super().__init__()
        self.image, self.patch = image, stem.patch
        cells = stem.patch.height * stem.patch.width
        factor, offset = (each.float().repeat(cells) for each in scaled_bytes(scaling, channels))
        self.hold("factor", factor)
        self.hold("offset", offset)
        self.before, self.project, self.after = stem.before, stem.project, stem.after
        assert isinstance(self.before, nn.LayerNorm)
        for part, name in ((self.before, "weight"), (self.before, "bias"), (self.project, "weight")):
            ordered = channels_last(getattr(part, name).detach(), channels, stem.patch)
            setattr(part, name, nn.Parameter(ordered.contiguous()))
        self.bias = torch.zeros(len(self.project.weight))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = cut(pixels.float(), self.image, self.patch)  # (B, N, P Q C)
        return self.after(self.project(self.before(patches * self.factor + self.offset)))  # (B, N, D)


class Scaled(Held):
    """Bytes as the images (B, C, H, W) that the model was trained on: a padded convolution cannot take the mean in."""

    factor: Tensor  # (C)
    offset: Tensor  # (C)

    def __init__(self, scaling: Normalize, channels: int) -> None:
        super().__init__()
        factor, offset = scaled_bytes(scaling, channels)
        self.hold("factor", factor.float())
        self.hold("offset", offset.float())

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() * self.factor + self.offset).permute(0, 3, 1, 2)  # (B, C, H, W)


class FixedConv(Held):
    """A convolution whose kernels were standardized once and for all."""

    weight: Tensor  # (outputs, inputs, k, k)

    def __init__(self, conv: StdConv2d) -> None:
        super().__init__()
        self.kernel, self.stride = conv.kernel, conv.stride
        self.hold("weight", standardize(conv.weight, conv.how))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(pad_same(x, self.kernel, self.stride), self.weight, stride=self.stride)


def fix_convolutions(part: nn.Module) -> None:
    """Put fixed convolutions in the place of those that standardize their kernels at every use."""
    for name, child in part.named_children():
        if isinstance(child, StdConv2d):
            setattr(part, name, FixedConv(child))
        else:
            fix_convolutions(child)


class Together(nn.Module):
    """Queries, keys and values of every token by one product, which is torch's quickest way."""

    def __init__(self, parts: Projection) -> None:
        super().__init__()
        self.all = joined(parts).layer()

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values (B, L, H d)."""
        return self.all(x).chunk(3, dim=-1)

    def apart(self) -> "Apart":
        """The same by three products."""
        weights, biases = (each.detach().chunk(3) for each in (self.all.weight, self.all.bias))
        return Apart(Projection(*map(Affine, weights, biases)))


class Apart(nn.Module):
    """Queries, keys and values each by a product of its own."""

    def __init__(self, parts: Projection) -> None:
        super().__init__()
        self.q, self.k, self.v = (part.layer() for part in parts)

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values (B, L, H d)."""
        return self.q(x), self.k(x), self.v(x)

    def apart(self) -> "Apart":
        return self


class FirstAsk(Apart):
    """Queries of the first few tokens alone, keys and values of all."""

    def __init__(self, parts: Projection, keep: int) -> None:
        super().__init__(parts)
        self.keep = keep

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Queries (B, keep, H d), keys and values (B, L, H d)."""
        return self.q(x[:, : self.keep]), self.k(x), self.v(x)


class WholeAttention(Held):
    """Tokens look at every token; the scale of the logits is in the weights, the angles of places are at hand."""

    cos: Tensor  # (L, d), where places turn queries and keys
    sin: Tensor

    def __init__(self, mixer: SelfAttention, layout: Layout, keep: int) -> None:
        super().__init__()
        heads, parts = mixer.heads, projection(mixer.heads)
        self.heads, self.head_width = heads.heads, heads.head_width
        self.qkv: Together | Apart = Together(parts) if keep == layout.length() else FirstAsk(parts, keep)
        self.q_norm, self.k_norm, self.project = heads.q_norm, heads.k_norm, mixer.project
        if isinstance(self.q_norm, nn.LayerNorm):
            self.q_norm = scaled_norm(self.q_norm, self.head_width**-0.5)
        self.turns = isinstance(heads.relation, RotaryPosition2d)
        if isinstance(heads.relation, RotaryPosition2d):
            angles = rotary_angles(layout.grid, self.head_width, heads.relation.base, torch.zeros(1))  # (N, d/2)
            first = (0, 0, layout.prefix(), 0)  # tokens without a place: cos 1, sin 0
            self.hold("cos", F.pad(angles.cos().repeat(1, 2), first, value=1.0))
            self.hold("sin", F.pad(torch.cat([-angles.sin(), angles.sin()], dim=1), first))

    def turned(self, x: Tensor) -> Tensor:
        """Queries or keys (B, H, tokens, d) turned by their place."""
        if not self.turns:
            return x
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        return x * cos + torch.cat([second, first], dim=-1) * sin

    def forward(self, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is gathered (B, keep, D), and the keys (B, H, L, d); a bias (B, 1, 1, L) is added to the logits."""
        q, k, v = (part.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2) for part in self.qkv(x))
        q, k = self.turned(self.q_norm(q)), self.turned(self.k_norm(k))  # each (B, H, ., d)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)  # (B, H, keep, d)
        return self.project(mixed.transpose(1, 2).flatten(2)), k


class FirstAttention(Held):
    """What the first few tokens gather from all, without ever making the keys and values of the others.

    A logit is q (K x) = (q K) x, and what is gathered is V of the mean of x: so the maps K and V act on a few vectors
    instead of on every token. The bias of the keys adds the same to all logits of a query, and drops out.
    """

    k: Tensor  # (H, d, D)
    v: Tensor  # (H, D, d)
    v_bias: Tensor  # (H d)

    def __init__(self, mixer: SelfAttention, keep: int) -> None:
        super().__init__()
        heads, parts = mixer.heads, projection(mixer.heads)
        self.heads, self.head_width, self.keep, self.project = heads.heads, heads.head_width, keep, mixer.project
        self.q = parts.q.layer()
        self.hold("k", parts.k.weight.unflatten(0, (self.heads, self.head_width)))
        self.hold("v", parts.v.weight.unflatten(0, (self.heads, self.head_width)).mT)
        self.hold("v_bias", parts.v.bias)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """What is gathered (B, keep, D); a bias (B, 1, 1, L) is added to the logits."""
        q = self.q(x[:, : self.keep]).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # (B, H, keep, d)
        asks = q @ self.k  # (B, H, keep, D)
        logits = asks @ x.mT[:, None]  # (B, H, keep, L)
        weights = (logits if bias is None else logits + bias).softmax(dim=-1)
        means = weights @ x[:, None]  # (B, H, keep, D)
        values = (means @ self.v).transpose(1, 2).flatten(2) + self.v_bias  # (B, keep, H d)
        return self.project(values)


class Mixed(nn.Module):
    """A mixer of the model as it is, in images of one size."""

    def __init__(self, mixer: nn.Module, layout: Layout, keep: int) -> None:
        super().__init__()
        self.mixer, self.layout, self.keep = mixer, layout, keep

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.mixer(x, self.layout, self.keep)  # (B, keep, D)


def mixer_of(mixer: nn.Module, layout: Layout, keep: int) -> WholeAttention | FirstAttention | Mixed:
    """The leanest form of a mixer that gives the same."""
    if not isinstance(mixer, SelfAttention):
        return Mixed(mixer, layout, keep)
    relation, normed = mixer.heads.relation, isinstance(mixer.heads.k_norm, nn.LayerNorm)
    if keep <= layout.prefix() and not normed and not isinstance(relation, RotaryPosition2d):
        return FirstAttention(mixer, keep)
    whole = mixer.config.window_that_fits(layout.grid, mixer.layer) == layout.grid
    if (whole or keep <= layout.prefix()) and type(relation) in {AttentionPosition, RotaryPosition2d}:
        return WholeAttention(mixer, layout, keep)
    return Mixed(mixer, layout, keep)


def fold_scales(block: EncoderBlock) -> None:
    """Work the factors of the branches into the layers before them, where there are such layers."""
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, SelfAttention) and isinstance(mixer.project, nn.Linear):
        mixer.project = with_scale(mixer.project, block.mixer_branch.scale).layer()
        block.mixer_branch.scale = nn.Identity()
    if isinstance(mlp, FeedForward | GatedFeedForward):
        mlp.contract = with_scale(mlp.contract, block.mlp_branch.scale).layer()
        block.mlp_branch.scale = nn.Identity()


class Block(nn.Module):
    """One layer. Tokens with sizes come out with sizes; without merging there are none to keep account of."""

    def __init__(self, block: EncoderBlock, layout: Layout, keep: int, merging: Merging, removed: int) -> None:
        super().__init__()
        fold_scales(block)
        self.first, self.keep, self.prefix = isinstance(block, PreNormBlock), keep, layout.prefix()
        self.cuts = keep < layout.length()
        self.mixer = mixer_of(block.mixer, layout, keep)
        self.mixer_scale, self.mlp_scale = block.mixer_branch.scale, block.mlp_branch.scale
        self.mixer_norm, self.mlp_norm, self.mlp = block.mixer_norm, block.mlp_norm, block.mlp
        self.merging, self.removed = merging, removed
        assert not removed or isinstance(self.mixer, WholeAttention), "only whole attention has keys to compare"

    def forward(self, x: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mixed = self.mixer(self.mixer_norm(x) if self.first else x, None if sizes is None else log_of(sizes))
        gathered, keys = mixed if isinstance(mixed, tuple) else (mixed, None)
        x = (x[:, : self.keep] if self.cuts else x) + self.mixer_scale(gathered)  # (B, keep, D)
        x = x if self.first else self.mixer_norm(x)
        if self.removed:
            assert keys is not None
            start = torch.ones_like(x[..., :1]) if sizes is None else sizes  # (B, L, 1)
            x, sizes = self.merging.apply(Merged(x, start), keys.mean(dim=1), self.removed, self.prefix)
        y = self.mlp_scale(self.mlp(self.mlp_norm(x) if self.first else x))  # (B, L, D)
        return (x + y if self.first else self.mlp_norm(x + y)), sizes


def log_of(sizes: Tensor) -> Tensor:
    """What attention adds to the logits of tokens that stand for several: as if each were there so many times."""
    return sizes.log().mT[:, None]  # (B, 1, 1, L)
