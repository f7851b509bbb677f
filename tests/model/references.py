"""Checkpoints that other libraries wrote, and the names that their tensors have in Vitral."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from vitral.config import Size

FOLDER = Path(__file__).parent.parent / "fixtures"

Weights = dict[str, Tensor]
Rules = tuple[tuple[str, str], ...]

HUGGING_FACE: Rules = (
    (r"^(vit|dinov2)\.", ""),
    (r"^encoder\.layer\.|^layer\.", "blocks."),
    (r"embeddings\.patch_embeddings\.(projection\.)?", "stem.project."),
    (r"embeddings\.position_embeddings", "position.table"),
    (r"(attention\.output\.dense|attention\.o_proj)\.", "mixer.project."),
    (r"attention\.attention\.|attention\.(?=[qkv]_proj)", "mixer.heads."),
    (r"heads\.(query|q_proj)", "heads.q"),
    (r"heads\.(key|k_proj)", "heads.k"),
    (r"heads\.(value|v_proj)", "heads.v"),
    (r"intermediate\.dense|mlp\.fc1|mlp\.up_proj|mlp\.weights_in", "mlp.expand"),
    (r"(?<=\d\.)output\.dense|mlp\.fc2|mlp\.down_proj|mlp\.weights_out", "mlp.contract"),
    (r"layernorm_before|norm1", "mixer_norm"),
    (r"layernorm_after|norm2", "mlp_norm"),
    (r"layer_scale1\.lambda1", "mixer_branch.scale.factor"),
    (r"layer_scale2\.lambda1", "mlp_branch.scale.factor"),
    (r"^layernorm", "norm"),
    (r"^classifier", "head.linear"),
)
TIMM: Rules = (
    (r"patch_embed\.proj", "stem.project"),
    (r"patch_embed\.backbone\.stem\.conv", "stem.body.root.0"),
    (r"patch_embed\.backbone\.stem\.norm", "stem.body.root.1"),
    (r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)", r"stem.body.stages.\1.\2"),
    (r"(?<=stages\.\d\.\d\.)conv1", "reduce.0"),
    (r"(?<=stages\.\d\.\d\.)norm1", "reduce.1"),
    (r"(?<=stages\.\d\.\d\.)conv2", "look.0"),
    (r"(?<=stages\.\d\.\d\.)norm2", "look.1"),
    (r"(?<=stages\.\d\.\d\.)conv3", "expand.0"),
    (r"(?<=stages\.\d\.\d\.)norm3", "expand.1"),
    (r"downsample\.conv", "shortcut.0"),
    (r"downsample\.norm", "shortcut.1"),
    (r"pos_embed", "position.table"),
    (r"attn_pool\.latent", "pool.query"),
    (r"attn_pool\.proj", "pool.project"),
    (r"attn_pool", "pool"),
    (r"attn\.proj", "mixer.project"),
    (r"attn\.", "mixer.heads."),
    (r"mlp\.fc1", "mlp.expand"),
    (r"mlp\.fc2", "mlp.contract"),
    (r"(?<=blocks\.\d\.)norm1", "mixer_norm"),
    (r"(?<=blocks\.\d\.)norm2", "mlp_norm"),
    (r"ls1\.gamma", "mixer_branch.scale.factor"),
    (r"ls2\.gamma", "mlp_branch.scale.factor"),
    (r"^head", "head.linear"),
)
VIT_PYTORCH: Rules = (
    (r"to_patch_embedding\.1", "stem.before"),
    (r"to_patch_embedding\.2", "stem.project"),
    (r"to_patch_embedding\.3", "stem.after"),
    (r"pos_embedding", "position.table"),
    (r"transformer\.layers", "blocks"),
    (r"(?<=blocks\.\d\.)0\.norm", "mixer_norm"),
    (r"(?<=blocks\.\d\.)0\.to_qkv", "mixer.heads.qkv"),
    (r"(?<=blocks\.\d\.)0\.to_out(\.0)?", "mixer.project"),
    (r"(?<=blocks\.\d\.)1\.net\.0", "mlp_norm"),
    (r"(?<=blocks\.\d\.)1\.net\.1", "mlp.expand"),
    (r"(?<=blocks\.\d\.)1\.net\.[34]", "mlp.contract"),
    (r"transformer\.norm", "norm"),
    (r"mlp_head|linear_head", "head.linear"),
)
TORCH: Rules = (
    (r"self_attn\.in_proj_", "mixer.heads.qkv."),
    (r"self_attn\.out_proj", "mixer.project"),
    (r"linear1", "mlp.expand"),
    (r"linear2", "mlp.contract"),
    (r"norm1", "mixer_norm"),
    (r"norm2", "mlp_norm"),
)


class Reference(NamedTuple):
    """What a library's model is, and what it answered."""

    config: dict[str, Any]
    weights: Weights
    answers: Weights


def reference(name: str) -> Reference:
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config = json.loads(file.metadata()["config"])
    weights = {key.removeprefix("weights/"): tensors.pop(key) for key in list(tensors) if key.startswith("weights/")}
    return Reference(config, weights, tensors)


def renamed(weights: Weights, rules: Rules) -> Weights:
    """The same tensors under our names."""

    def ours(name: str) -> str:
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return name

    return {ours(name): tensor for name, tensor in weights.items()}


def gather_tokens(weights: Weights, *names: str) -> None:
    """Class token and registers become one tensor of ours."""
    rows = [weights.pop(name).reshape(-1, weights["norm.weight"].numel()) for name in names]
    weights["prefix.tokens"] = torch.cat(rows)


def flatten_kernel(weights: Weights) -> None:
    weights["stem.project.weight"] = weights["stem.project.weight"].flatten(1)


def fuse_heads(weights: Weights, depth: int) -> None:
    """Separate maps for q, k and v become one; a bias that is not there is zero."""
    for layer in range(depth):
        base = f"blocks.{layer}.mixer.heads."
        parts = [weights.pop(f"{base}{part}.weight") for part in "qkv"]
        weights[f"{base}qkv.weight"] = torch.cat(parts)
        biases = [weights.pop(f"{base}{part}.bias", torch.zeros(len(parts[0]))) for part in "qkv"]
        weights[f"{base}qkv.bias"] = torch.cat(biases)


def reorder_pixels(weights: Weights, patch: Size) -> None:
    """vit-pytorch's patches have their channels innermost; ours have them outermost."""
    for name in ("stem.before.weight", "stem.before.bias", "stem.project.weight"):
        tensor = weights[name].unflatten(-1, (*patch, -1))  # (..., P, Q, C)
        weights[name] = tensor.movedim(-1, -3).flatten(-3)
