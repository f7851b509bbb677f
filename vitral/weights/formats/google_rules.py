"""Which tensors of ours are which of Google's, who keep every map with its inputs first.

D width, H heads, h head width, M width of the MLP, P x Q pixels a patch, C channels.
What is read is laid out anew, so that a model computes the same bits whatever file it came from.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.config import Size
from vitral.model.attention import Attention
from vitral.model.head import LinearHead, TanhHead
from vitral.model.pool import AttentionPool
from vitral.model.stem import Hybrid
from vitral.model.vit import Vit
from vitral.weights.formats.google_hybrid import body_rules, to_convolution, to_kernel
from vitral.weights.formats.places import place_rules
from vitral.weights.formats.rule import Rule, changed, same

BLOCK = "Transformer/encoderblock"
EMBEDDING, PROBE = "embedding/kernel", "MAPHead_0/probe"


class Names(NamedTuple):
    """What differs between the two layouts: the numbers of a block's parts, and where the positions are."""

    attention: str
    mlp: str
    mlp_norm: str
    table: str

    def query(self, block: str) -> str:
        """The kernel that tells the heads of a block."""
        return f"{block}/{self.attention}/query/kernel"


ORIGINAL = Names(
    "MultiHeadDotProductAttention_1", "MlpBlock_3", "LayerNorm_2", "Transformer/posembed_input/pos_embedding"
)
BIG_VISION = Names("MultiHeadDotProductAttention_0", "MlpBlock_0", "LayerNorm_1", "pos_embedding")


def google_rules(model: Vit, names: Names) -> list[Rule]:
    """The rules of a whole model in one of the layouts."""
    assert isinstance(model.mixer, Attention)
    heads = model.mixer.heads
    rules = body_rules(model.stem, "stem.body") if isinstance(model.stem, Hybrid) else []
    rules += [_stem("stem.project.weight", EMBEDDING, model.stem.patch), same("stem.project.bias", "embedding/bias")]
    rules += place_rules(model, ["cls"] * model.tokens.cls, names.table)
    for layer in range(model.depth):
        own, other = f"blocks.{layer}", f"{BLOCK}_{layer}"
        rules += norm(f"{own}.mixer_norm", f"{other}/LayerNorm_0") + norm(
            f"{own}.mlp_norm", f"{other}/{names.mlp_norm}"
        )
        maps = [f"{other}/{names.attention}/{part}" for part in ("query", "key", "value")]
        rules += stacked_heads(f"{own}.mixer.heads.qkv", maps, heads)
        rules += joined_heads(f"{own}.mixer.project", f"{other}/{names.attention}/out", heads)
        rules += mlp(f"{own}.mlp", f"{other}/{names.mlp}")
    rules += norm("norm", "Transformer/encoder_norm")
    if isinstance(model.pool, AttentionPool):
        rules += pool_rules(heads)
    if isinstance(model.head, TanhHead):
        rules += dense("head.hidden", "pre_logits") + dense("head.classifier.linear", "head")
    elif isinstance(model.head, LinearHead):
        rules += dense("head.linear", "head")
    return rules


def pool_rules(heads: int) -> list[Rule]:
    """The learned query that gathers."""
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    return [
        same("pool.query", PROBE),
        *stacked_heads("pool.q", [f"{attention}/query"], heads),
        *stacked_heads("pool.kv", [f"{attention}/key", f"{attention}/value"], heads),
        *joined_heads("pool.project", f"{attention}/out", heads),
        *norm("pool.norm", "MAPHead_0/LayerNorm_0"),
        *mlp("pool.mlp", "MAPHead_0/MlpBlock_0"),
    ]


def norm(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def mlp(ours: str, theirs: str) -> list[Rule]:
    """Kernels (D, M) and (M, D)."""
    return dense(f"{ours}.expand", f"{theirs}/Dense_0") + dense(f"{ours}.contract", f"{theirs}/Dense_1")


def dense(ours: str, theirs: str) -> list[Rule]:
    """A kernel (inputs, outputs) and its bias."""
    kernel = changed(f"{ours}.weight", f"{theirs}/kernel", _turned, _turned)
    return [kernel, same(f"{ours}.bias", f"{theirs}/bias")]


def stacked_heads(ours: str, theirs: Sequence[str], heads: int) -> list[Rule]:
    """Maps to heads, kernels (D, H, h) and biases (H, h), which stand above one another in ours."""

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([kernel.flatten(1).mT for kernel in found])]  # (maps H h, D)

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [part.mT.unflatten(1, (heads, -1)) for part in own[0].chunk(len(theirs))]  # each (D, H, h)

    def read_bias(found: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([bias.flatten() for bias in found])]  # (maps H h)

    def write_bias(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [part.unflatten(0, (heads, -1)) for part in own[0].chunk(len(theirs))]  # each (H, h)

    return [
        Rule((f"{ours}.weight",), tuple(f"{name}/kernel" for name in theirs), read, write),
        Rule((f"{ours}.bias",), tuple(f"{name}/bias" for name in theirs), read_bias, write_bias),
    ]


def joined_heads(ours: str, theirs: str, heads: int) -> list[Rule]:
    """The map from heads, a kernel (H, h, D), and its bias."""

    def read(kernel: Tensor) -> Tensor:
        return _turned(kernel.flatten(0, 1))  # (D, H h)

    def write(weight: Tensor) -> Tensor:
        return weight.mT.unflatten(0, (heads, -1))  # (H, h, D)

    return [changed(f"{ours}.weight", f"{theirs}/kernel", read, write), same(f"{ours}.bias", f"{theirs}/bias")]


def _stem(ours: str, theirs: str, patch: Size) -> Rule:
    """A kernel (P, Q, C, D)."""

    def read(kernel: Tensor) -> Tensor:
        return to_convolution(kernel).flatten(1)  # (D, C P Q)

    def write(weight: Tensor) -> Tensor:
        return to_kernel(weight.unflatten(1, (-1, *patch)))  # (P, Q, C, D)

    return changed(ours, theirs, read, write)


def _turned(weight: Tensor) -> Tensor:
    return weight.mT.contiguous()
