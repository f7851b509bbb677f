"""The attention of a layer from its weights, number by number in double precision, and models that are not asleep."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.models import Axial, Local, Relative1d, Relative2d, Rope2d, VisionTransformer, Vit
from vitral.models.attention import BaseAttention

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
    assert isinstance(config.mixer, BaseAttention)
    heads, layout = config.mixer.heads, config.layout(config.image_size)
    x = tokens.double().numpy()
    if config.block.kind == "pre":
        x = norm(x, weights, "mixer_norm", config.eps)
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
        if isinstance(config.position, Rope2d):
            q, k = (turned(each, places, layout.prefix(), layout.grid, config.position.base) for each in (q, k))
        for query in range(len(x)):
            powers = [
                math.exp(logit(config, weights, q[query], k[key], places[query], places[key], (query, key)))
                if sees(config.mixer, layer, places[query], places[key]) or min(query, key) < layout.prefix()
                else 0.0
                for key in range(len(x))
            ]
            found[head, query] = np.array(powers) / sum(powers)
    return found


def norm(x: Array, weights: dict[str, Array], name: str, eps: float) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def turned(x: Array, places: list[Place], prefix: int, grid: tuple[int, int], base: float) -> Array:
    """Pairs i and i + d/2 of each patch turned: the first half of them by its row, the others by its column."""
    result, half = x.copy(), x.shape[1] // 2
    for token in range(prefix, len(x)):
        for pair in range(half):
            axis, plane = divmod(pair, half // 2)
            place = (places[token][axis] + 0.5) / grid[axis] * 2 - 1
            angle = 2 * math.pi * place / base ** (plane / (half // 2))
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
    return total / math.sqrt(len(q))


def sees(mixer: BaseAttention, layer: int, one: Place, other: Place) -> bool:
    if isinstance(mixer, Axial):
        return one[layer % 2] == other[layer % 2]
    if isinstance(mixer, Local):
        return one[0] // mixer.rows == other[0] // mixer.rows and one[1] // mixer.columns == other[1] // mixer.columns
    return True
