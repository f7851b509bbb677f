"""How timm's classes hold the tensors of a model, in both directions.  D width, H heads, d head width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.models.attention import Attention
from vitral.models.base import Grid
from vitral.models.block import MultiBranch, Parallel
from vitral.models.embed import Hybrid
from vitral.models.mlp import SwiGlu
from vitral.models.pool import AttentionPool, DistilledPool, PrefixPool
from vitral.models.position import RelativeBias, RelativeMlp, RopeMixed, inside_attention, learned_table
from vitral.models.vit import Vit
from vitral.weights.formats.rules import (
    STEM,
    TABLE,
    Names,
    Rule,
    Weights,
    averaged_heads,
    concat,
    constant,
    mapped,
    named_rules,
    patch_kernel,
    position_rules,
    resnet_names,
    same,
    split,
    token_rules,
)

Qkv = Literal["fused", "fused_without_k_bias", "split", "split_without_k_bias"]


@dataclass(frozen=True)
class TensorLayout:
    """Where timm has several ways to hold the same values."""

    qkv: Qkv = "fused"
    scale: Literal["ls", "gamma", "gamma_of_attention"] = "ls"
    gated: Literal["packed", "split"] = "packed"
    relative: str = "attn.rel_pos"  # the module within a layer, or of all layers
    shared_relative: str = "shared_rel_pos"
    naflex: bool = False
    contract_bias: bool = True  # of the MLP in parallel blocks, whose first layer always has one
    averaged_head: bool = False  # whether one head of ours is the mean of DeiT's two
    kv_heads: tuple[int, ...] = ()  # of each layer where several heads share them

    def rules(self, model: Vit, own: Weights) -> list[Rule]:
        """Which tensors are which."""
        names = tensor_names(model, self)
        special = [*stem_rules(model, self), *relation_rules(model), *layer_rules(model, self)]
        special += averaged_heads("head.linear", ("head", "head_dist")) * self.averaged_head
        return named_rules(own, names, special)


BACKBONE = "patch_embed.backbone"
UNIT_PARTS = {
    "reduce": ("conv1", "norm1"),
    "look": ("conv2", "norm2"),
    "expand": ("conv3", "norm3"),
    "shortcut": ("downsample.conv", "downsample.norm"),
}


def backbone_names(stem: str) -> dict[str, str]:
    """The names of the ResNet of a hybrid."""
    return resnet_names((f"{stem}conv", f"{stem}norm"), f"{BACKBONE}.stages.*.blocks.*.", UNIT_PARTS)


def tensor_names(model: Vit, layout: TensorLayout) -> Names:
    """Our tensors and modules, and timm's."""
    embed = "embeds" if layout.naflex else "patch_embed"
    attention_pool = isinstance(model.pool, AttentionPool)
    names: dict[str, str | tuple[str, ...]] = {
        STEM: f"{embed}.proj",
        "stem.after": f"{embed}.norm",
        "first_norm": "norm_pre",
        "norm": "norm",
        "pool.norm": "attn_pool.norm" if attention_pool else "fc_norm",
        "pool.query": "attn_pool.latent",
        "pool.q": "attn_pool.q",
        "pool.kv": "attn_pool.kv",
        "pool.project": "attn_pool.proj",
        "pool.mlp.expand": "attn_pool.mlp.fc1",
        "pool.mlp.contract": "attn_pool.mlp.fc2",
        "head.linear": "head",
        "head.cls.linear": "head",
        "head.distilled.linear": "head_dist",
        "head.hidden": "pre_logits.fc",
        "head.classifier.linear": "head",
        **block_names(model, layout),
    }
    if isinstance(model.stem, Hybrid):
        names |= backbone_names(f"{BACKBONE}.stem." if model.stem.layers else f"{BACKBONE}.")
    return names


def block_names(model: Vit, layout: TensorLayout) -> dict[str, str | tuple[str, ...]]:
    """The names within a layer."""
    layer = "blocks.*."
    if isinstance(model.block, Parallel):
        return {
            f"{layer}norm": f"{layer}in_norm",
            f"{layer}mixer.heads.q_norm": f"{layer}q_norm",
            f"{layer}mixer.heads.k_norm": f"{layer}k_norm",
            f"{layer}mixer.project": f"{layer}attn_out_proj",
            f"{layer}mlp.contract": f"{layer}mlp_out_proj",
            f"{layer}branch.scale.factor": f"{layer}ls.gamma",
        }
    names: dict[str, str | tuple[str, ...]] = {}
    if isinstance(model.block, MultiBranch):
        for number in range(model.block.branches):
            ours, theirs = f"{layer}mixers.{number}.", f"{layer}attns.{number}."
            names |= mixer_names(f"{ours}mixer.", f"{theirs}attn.")
            names |= {f"{ours}norm": f"{theirs}norm", f"{ours}branch.scale.factor": f"{theirs}ls.gamma"}
            ours, theirs = f"{layer}mlps.{number}.", f"{layer}ffns.{number}."
            names |= mlp_names(f"{ours}mlp.", f"{theirs}mlp.", model, layout)
            names |= {f"{ours}norm": f"{theirs}norm", f"{ours}branch.scale.factor": f"{theirs}ls.gamma"}
        return names
    scales = ("ls1.gamma", "ls2.gamma") if layout.scale == "ls" else ("gamma_1", "gamma_2")
    return {
        **mixer_names(f"{layer}mixer.", f"{layer}attn."),
        **mlp_names(f"{layer}mlp.", f"{layer}mlp.", model, layout),
        **relation_names(model, layout),
        f"{layer}mixer_norm": f"{layer}norm1",
        f"{layer}mlp_norm": f"{layer}norm2",
        f"{layer}mixer_branch.scale.factor": layer + scales[0],
        f"{layer}mlp_branch.scale.factor": layer + scales[1],
    }


def mixer_names(ours: str, theirs: str) -> Names:
    return {
        f"{ours}heads.qkv": f"{theirs}qkv",
        f"{ours}heads.q_norm": f"{theirs}q_norm",
        f"{ours}heads.k_norm": f"{theirs}k_norm",
        f"{ours}output_norm": f"{theirs}norm",
        f"{ours}project": f"{theirs}proj",
    }


def mlp_names(ours: str, theirs: str, model: Vit, layout: TensorLayout) -> Names:
    apart = isinstance(model.mlp, SwiGlu) and layout.gated == "split"
    expand = (f"{theirs}fc1_g", f"{theirs}fc1_x") if apart else f"{theirs}fc1"
    return {f"{ours}expand": expand, f"{ours}norm": f"{theirs}norm", f"{ours}contract": f"{theirs}fc2"}


def relation_names(model: Vit, layout: TensorLayout) -> Names:
    """Relative positions; a module that all layers share has one name in timm."""
    inside = inside_attention(model.position)
    if not isinstance(inside, RelativeBias | RelativeMlp):
        return {}
    ours = "blocks.*.mixer.heads.relation"
    theirs = layout.shared_relative if inside.shared else f"blocks.*.{layout.relative}"
    return {
        f"{ours}.table": f"{theirs}.relative_position_bias_table",
        f"{ours}.expand": f"{theirs}.mlp.fc1",
        f"{ours}.contract": f"{theirs}.mlp.fc2",
    }


def stem_rules(model: Vit, layout: TensorLayout) -> Iterator[Rule]:
    """Patches, prefix tokens and learned positions."""
    patch = model.stem.patch
    if layout.naflex:
        yield linear_patches(f"{STEM}.weight", "embeds.proj.weight", model)
        if learned_table(model.position):
            yield unflattened(TABLE, "embeds.pos_embed", model.layout(model.image_size).grid)
        yield from token_rules(model, ("embeds.cls_token", "embeds.reg_token"))
        return
    yield patch_kernel(f"{STEM}.weight", "patch_embed.proj.weight", patch)
    second = "dist_token" if isinstance(model.pool, DistilledPool | PrefixPool) else "reg_token"
    yield from position_rules(model, ("cls_token", second), "pos_embed")


def linear_patches(ours: str, theirs: str, model: Vit) -> Rule:
    """A linear map of pixels whose channels are last in theirs, first in ours."""
    patch, channels = model.stem.patch, model.channels

    def read(found: Tensor) -> Tensor:
        return found.unflatten(1, (*patch, channels)).movedim(-1, 1).flatten(1)  # (D, C P Q)

    def write(own: Tensor) -> Tensor:
        return own.unflatten(1, (channels, *patch)).movedim(1, -1).flatten(1)  # (D, P Q C)

    return mapped(ours, theirs, read, write)


def unflattened(ours: str, theirs: str, grid: Grid) -> Rule:
    """A table of positions in rows and columns."""
    return mapped(ours, theirs, lambda found: found.flatten(1, 2), lambda own: own.unflatten(1, grid))


def relation_rules(model: Vit) -> Iterator[Rule]:
    """Learned frequencies, which are one tensor (2, depth, H, d/2) in timm."""
    if isinstance(inside_attention(model.position), RopeMixed):
        ours = tuple(f"blocks.{layer}.mixer.heads.relation.frequencies" for layer in range(model.depth))
        yield Rule(
            ours,
            ("rope.freqs",),
            lambda found: found[0].unbind(1),
            lambda own: [concat([each[:, None] for each in own], dim=1)],
        )


def layer_rules(model: Vit, layout: TensorLayout) -> Iterator[Rule]:
    """What is joined or apart in one of both."""
    for layer in range(model.depth):
        if isinstance(model.block, Parallel):
            yield from parallel_rules(model, layout, f"blocks.{layer}.")
        elif layout.qkv != "fused":
            yield from qkv_rules(model, layout, layer)
        if layout.scale == "gamma_of_attention":
            yield constant(f"blocks.{layer}.mlp_branch.scale.factor", (model.width,), 1.0, "the scale of the MLP")


def parallel_rules(model: Vit, layout: TensorLayout, layer: str) -> Iterator[Rule]:
    """The first layer of the MLP and q, k and v are one map in timm."""
    assert isinstance(model.mixer, Attention)
    sizes = (model.mlp.hidden(model.width), 3 * model.width)
    joined = ("mlp.expand", "mixer.heads.qkv")
    yield split([f"{layer}{part}.weight" for part in joined], f"{layer}in_proj.weight", sizes)
    if model.mixer.qkv_bias:
        yield split([f"{layer}{part}.bias" for part in joined], f"{layer}in_proj.bias", sizes)
    else:
        yield same(f"{layer}mlp.expand.bias", f"{layer}mlp_bias")
    if not layout.contract_bias:
        yield constant(f"{layer}mlp.contract.bias", (model.width,), 0.0, "the bias of the MLP")


def qkv_rules(model: Vit, layout: TensorLayout, layer: int) -> Iterator[Rule]:
    """q, k and v as separate maps, or k without a bias."""
    assert isinstance(model.mixer, Attention)
    ours, theirs = f"blocks.{layer}.mixer.heads.qkv.", f"blocks.{layer}.attn."
    parts = [f"{theirs}{part}_proj." for part in "qkv"]
    inner = model.mixer.heads * model.mixer.head_width_for(model.width)
    head = inner // model.mixer.heads
    groups = model.mixer.heads // (layout.kv_heads[layer] if layout.kv_heads else model.mixer.heads)
    separate = layout.qkv.startswith("split")
    if separate:
        yield separate_maps(f"{ours}weight", [f"{part}weight" for part in parts], groups, head)
    if not model.mixer.qkv_bias:
        return
    if layout.qkv == "split":
        yield separate_maps(f"{ours}bias", [f"{part}bias" for part in parts], groups, head)
    else:
        biases = (f"{parts[0]}bias", f"{parts[2]}bias") if separate else (f"{theirs}q_bias", f"{theirs}v_bias")
        yield bias_without_k(f"{ours}bias", biases)


def bias_without_k(ours: str, theirs: tuple[str, ...]) -> Rule:
    """The bias of q and v; that of k is zero."""

    def read(found: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([found[0], torch.zeros_like(found[0]), found[1]])]

    def write(own: Sequence[Tensor]) -> list[Tensor]:
        q, k, v = own[0].chunk(3)
        if not k.is_meta and bool(k.any()):
            message = "the bias of k, which is not zero in this model, has no counterpart"
            raise WeightsError(message, code="weights.no_counterpart", where=ours)
        return [q, v]

    return Rule((ours,), theirs, read, write)


def separate_maps(ours: str, theirs: Sequence[str], groups: int, head: int) -> Rule:
    """q, k and v as separate tensors; each head of k and v may serve a group of heads of q."""
    if groups == 1:
        return Rule((ours,), tuple(theirs), lambda found: [torch.cat(list(found))], lambda own: own[0].chunk(3))

    def repeat(part: Tensor) -> Tensor:
        return part.unflatten(0, (-1, head)).repeat_interleave(groups, dim=0).flatten(0, 1)

    def first(part: Tensor) -> Tensor:
        kept = part.unflatten(0, (-1, groups, head))[:, 0].flatten(0, 1)
        if not part.is_meta and not torch.equal(repeat(kept), part):
            message = f"the heads of k and v differ within groups of {groups}, and theirs share them"
            raise WeightsError(message, code="weights.no_counterpart", where=ours)
        return kept

    def write(own: Sequence[Tensor]) -> list[Tensor]:
        q, k, v = own[0].chunk(3)
        return [q, first(k), first(v)]

    return Rule((ours,), tuple(theirs), lambda found: [torch.cat([found[0], *map(repeat, found[1:])])], write)
