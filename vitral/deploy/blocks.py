"""The blocks of a graph: attention and MLP on their residual paths, and between them the place where tokens merge.

B images, L tokens, D width, H heads, d head width.
"""

import torch
from torch import Tensor, nn

from vitral.deploy.folding import with_scale
from vitral.deploy.layers import FirstAttention, WholeAttention
from vitral.deploy.merging import Merged, Merging
from vitral.model.attention import SelfAttention
from vitral.model.block import Parts, PreNormBlock
from vitral.model.mlp import GatedLayers, TwoLayers
from vitral.model.place import Relation
from vitral.model.position import Rotation
from vitral.model.shapes import Layout


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
    if keep <= layout.prefix() and not normed and not isinstance(relation, Rotation):
        return FirstAttention(mixer, keep)
    whole = mixer.config.window_that_fits(layout.grid, mixer.layer) == layout.grid
    if (whole or keep <= layout.prefix()) and type(relation) in {Relation, Rotation}:
        return WholeAttention(mixer, layout, keep)
    return Mixed(mixer, layout, keep)


def fold_scales(block: Parts) -> None:
    """Work the factors of the branches into the layers before them, where there are such layers."""
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, SelfAttention) and isinstance(mixer.project, nn.Linear):
        mixer.project = with_scale(mixer.project, block.mixer_branch.scale).layer()
        block.mixer_branch.scale = nn.Identity()
    if isinstance(mlp, TwoLayers | GatedLayers):
        mlp.contract = with_scale(mlp.contract, block.mlp_branch.scale).layer()
        block.mlp_branch.scale = nn.Identity()


class Block(nn.Module):
    """One layer. Tokens with sizes come out with sizes; without merging there are none to keep account of."""

    def __init__(self, block: Parts, layout: Layout, keep: int, merging: Merging, removed: int) -> None:
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
