"""The attention of a layer from its weights, number by number in double precision, and models that are not asleep."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.models import (
    Axial,
    Layout,
    Local,
    Relative1d,
    Relative2d,
    RelativeBias,
    RelativeMlp,
    Rope2d,
    RopeAxial,
    RopeCls,
    RopeMixed,
    VisionTransformer,
    Vit,
)
from vitral.models.attention import BaseAttention, Causal
from vitral.models.position import inside_attention

Array = NDArray[np.float64]
Place = tuple[int, int]


def awake(config: Vit) -> VisionTransformer:
    """A model none of whose weights is zero or one: its attention is neither even nor the same in all heads."""
    model = config.build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * min(0.2, weight.shape[-1] ** -0.5))
    return model.eval()


def images_for(config: Vit, count: int = 2) -> Tensor:
    return torch.randn(count, config.channels, *config.image_size)


def attention_by_hand(model: VisionTransformer, layer: int, tokens: Tensor) -> Array:
    """What each token (T, D) of an image of the model's own size looks at in a layer, counted from 0: (H, T, T)."""
    config, block = model.config, model.blocks[layer].state_dict()
    weights = {name: tensor.double().numpy() for name, tensor in block.items()}
    if config.block.kind == "multi_branch":
        return np.concatenate([branch_by_hand(config, layer, tokens, weights, f"mixers.{side}.") for side in range(2)])
    return branch_by_hand(config, layer, tokens, weights, "")


def branch_by_hand(config: Vit, layer: int, tokens: Tensor, all_weights: dict[str, Array], branch: str) -> Array:
    weights = {name.removeprefix(branch): value for name, value in all_weights.items() if name.startswith(branch)}
    assert isinstance(config.mixer, BaseAttention)
    heads, layout = config.mixer.heads, config.layout(config.image_size)
    x = tokens.double().numpy()
    if config.block.kind in ("pre", "parallel", "multi_branch"):
        x = norm(x, weights, "mixer_norm" if config.block.kind == "pre" else "norm", config.eps)
    qkv = x @ weights["mixer.heads.qkv.weight"].T + weights.get("mixer.heads.qkv.bias", 0.0)
    width = qkv.shape[1] // 3 // heads
    places = [(0, 0)] * layout.prefix() + [divmod(cell, layout.grid.columns) for cell in range(layout.grid.cells())]
    found = np.zeros((heads, len(x), len(x)))
    for head in range(heads):
        q, k = (qkv[:, (part * heads + head) * width : (part * heads + head + 1) * width] for part in (0, 1))
        if config.mixer.qk_norm:
            q, k = (
                norm(q, weights, "mixer.heads.q_norm", config.eps),
                norm(k, weights, "mixer.heads.k_norm", config.eps),
            )
        inside = inside_attention(config.position)
        if isinstance(inside, Rope2d):
            q, k = (turned(each, places, layout.prefix(), layout.grid, inside) for each in (q, k))
        if isinstance(inside, RopeCls):
            q, k = (turned_with_cls(each, places, layout.prefix(), inside, weights) for each in (q, k))
        if isinstance(inside, RopeAxial | RopeMixed):
            q, k = (turned_in_pairs(each, places, layout, inside, weights, head) for each in (q, k))
        for query in range(len(x)):
            powers = [
                math.exp(
                    logit(config, weights, q[query], k[key], places[query], places[key], (query, key))
                    + head_bias(config, weights, head, places[query], places[key], (query, key))
                )
                if (
                    key <= query
                    if isinstance(config.mixer, Causal)
                    else sees(config.mixer, layer, places[query], places[key]) or min(query, key) < layout.prefix()
                )
                else 0.0
                for key in range(len(x))
            ]
            found[head, query] = np.array(powers) / sum(powers)
    return found


def norm(x: Array, weights: dict[str, Array], name: str, eps: float) -> Array:
    if f"{name}.bias" not in weights:  # RMSNorm
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weights[f"{name}.weight"]
    centered = x - x.mean(axis=-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def turned(x: Array, places: list[Place], prefix: int, grid: tuple[int, int], rope: Rope2d) -> Array:
    """Pairs i and i + d/2 of each patch turned: the first half of them by its row, the others by its column."""
    result, half = x.copy(), x.shape[1] // 2
    for token in range(prefix, len(x)):
        for pair in range(half):
            axis, plane = divmod(pair, half // 2)
            place = (places[token][axis] + 0.5) / grid[axis] * 2 - 1
            period = rope.base ** (plane / (half // 2))
            if rope.precision == "bfloat16":
                period = torch.tensor(period).bfloat16().item()
            angle = 2 * math.pi * place / period
            one, other = x[token, pair], x[token, pair + half]
            result[token, pair] = one * math.cos(angle) - other * math.sin(angle)
            result[token, pair + half] = other * math.cos(angle) + one * math.sin(angle)
    return result


def logit(
    config: Vit, weights: dict[str, Array], q: Array, k: Array, one: Place, other: Place, tokens: tuple[int, int]
) -> float:
    rows, columns = config.layout(config.image_size).grid
    total = float(q @ k)
    if min(tokens) >= config.layout(config.image_size).prefix():
        if isinstance(config.position, Relative1d):
            total += float(q @ weights["mixer.heads.relation.table"][tokens[0] - tokens[1] + rows * columns - 1])
        if isinstance(config.position, Relative2d):
            table = weights["mixer.heads.relation.table"].reshape(2 * rows - 1, 2 * columns - 1, -1)
            total += float(q @ table[one[0] - other[0] + rows - 1, one[1] - other[1] + columns - 1])
    assert isinstance(config.mixer, BaseAttention)
    return total / math.sqrt(len(q)) if config.mixer.scale == "1/sqrt(d)" else total * config.mixer.scale


def head_bias(
    config: Vit, weights: dict[str, Array], head: int, one: Place, other: Place, tokens: tuple[int, int]
) -> float:
    """What is added to the logit of two tokens, whatever their content."""
    inside, layout = inside_attention(config.position), config.layout(config.image_size)
    down, right = one[0] - other[0], one[1] - other[1]
    patches = min(tokens) >= layout.prefix()
    if isinstance(inside, RelativeMlp) and patches:
        logs = np.array([math.copysign(math.log1p(abs(step)), step) for step in (down, right)])
        part = "mixer.heads.relation"
        hidden = np.maximum(weights[f"{part}.expand.weight"] @ logs + weights[f"{part}.expand.bias"], 0)
        return float((weights[f"{part}.contract.weight"] @ hidden + weights[f"{part}.contract.bias"])[head])
    if not isinstance(inside, RelativeBias):
        return 0.0
    table, (rows, columns) = weights["mixer.heads.relation.table"], layout.grid
    if patches:
        return float(table[(down + rows - 1) * (2 * columns - 1) + right + columns - 1, head])
    if not layout.cls or any(0 < token < layout.prefix() for token in tokens):
        return 0.0
    return float(table[-1 if tokens == (0, 0) else -3 if tokens[0] == 0 else -2, head])


def turned_in_pairs(
    x: Array, places: list[Place], layout: Layout, rope: RopeAxial | RopeMixed, weights: dict[str, Array], head: int
) -> Array:
    """Pairs 2i and 2i + 1 of each patch turned, by fixed frequencies of one axis or learned ones of both."""
    result, half = x.copy(), x.shape[1] // 2
    axes = (0, 1) if rope.order == "rows_first" else (1, 0)
    for token in range(layout.prefix(), len(x)):
        for pair in range(half):
            if isinstance(rope, RopeMixed):
                waves = weights["mixer.heads.relation.frequencies"][:, head, pair]
                angle = sum(places[token][axis] * wave for axis, wave in zip(axes, waves, strict=True))
            else:
                half_of, plane = divmod(pair, half // 2)
                axis = axes[half_of]
                place = places[token][axis] + rope.offset
                place = place if rope.reference == "none" else place / layout.grid[axis] * rope.reference[axis]
                angle = place / rope.base ** (plane / (half // 2))
            one, other = x[token, 2 * pair], x[token, 2 * pair + 1]
            result[token, 2 * pair] = one * math.cos(angle) - other * math.sin(angle)
            result[token, 2 * pair + 1] = other * math.cos(angle) + one * math.sin(angle)
    return result


def turned_with_cls(x: Array, places: list[Place], prefix: int, rope: RopeCls, weights: dict[str, Array]) -> Array:
    """Pairs i and i + d/2 turned: of the class token by learned angles, of a patch by its row and column."""
    result, half = x.copy(), x.shape[1] // 2
    for token in (0, *range(prefix, len(x))):
        for pair in range(half):
            axis, plane = divmod(pair, half // 2)
            angle = places[token][axis] / rope.base ** (plane / (half // 2))
            angle = angle if token else float(weights["mixer.heads.relation.cls_angles"][pair])
            one, other = x[token, pair], x[token, pair + half]
            result[token, pair] = one * math.cos(angle) - other * math.sin(angle)
            result[token, pair + half] = other * math.cos(angle) + one * math.sin(angle)
    return result


def sees(mixer: BaseAttention, layer: int, one: Place, other: Place) -> bool:
    if isinstance(mixer, Axial):
        return one[layer % 2] == other[layer % 2]
    if isinstance(mixer, Local):
        return one[0] // mixer.rows == other[0] // mixer.rows and one[1] // mixer.columns == other[1] // mixer.columns
    return True
