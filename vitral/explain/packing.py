"""Attention and similarity in few bytes, for a script to unpack.

L layers, H heads, T tokens, p of them no patches, N cells.
"""

import zlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.explain.coarse import among_cells, coarse
from vitral.explain.explanation import Array, Explanation
from vitral.model.shapes import Grid, Layout

STEPS = (255, 191, 127, 95, 63, 47, 31, 23, 15)  # between nothing and the most of a row; the finest that fits is taken
WHOLE = 65535
HOPELESS = 1.25  # times too many bytes, by entropy: deflate finds repeats, but not that many


class Packed(NamedTuple):
    """What the tokens looked at, and how alike the patches are; empty strings where there is nothing of it."""

    grid: Grid  # of the cells
    heads: tuple[int, ...]  # of each layer
    steps: int
    cells: str  # (L, H, T, N), a byte each: the root of a weight, in steps, where the root of its row's most is `steps`
    rows: str  # (L, H, T, 1 + p), two bytes each, of 65,535: the row's most, then the weights of what is no patch
    similarity: str  # (N, N), a byte each: 0 for -1, 255 for 1


def packed(explanation: Explanation, most: int) -> Packed:
    """The arrays, attention in at most so many bytes: in coarser steps, and if that is not enough, of fewer cells."""
    layers = [layer.attention for layer in explanation.layers if layer.attention.size]
    layout, similarity = explanation.layout._replace(grid=explanation.shown), explanation.similarity
    heads = tuple(len(weights) for weights in layers)
    while True:
        roots, rows = _roots(layers, layout.prefix())
        alike = deflated(np.rint(127.5 * (similarity + 1)).clip(0, 255).astype(np.uint8))  # (N, N)
        for steps in STEPS:
            levels = np.rint(roots * steps).astype(np.uint8)
            if _entropy(levels) <= HOPELESS * most or steps == STEPS[-1]:
                cells = deflated(levels)
                if len(cells) + len(rows) <= most:
                    return Packed(layout.grid, heads, steps, cells, rows, alike)
        fewer = Grid(-(-layout.grid.rows // 2), -(-layout.grid.columns // 2))
        if fewer == layout.grid:  # a single cell: nothing is left to join
            return Packed(layout.grid, heads, steps, cells, rows, alike)
        layers = [joined(weights, layout, fewer) for weights in layers]
        similarity = joined_similarity(similarity, layout.grid, fewer)
        layout = layout._replace(grid=fewer)


def _roots(layers: Sequence[Array], prefix: int) -> tuple[Array, str]:
    """The root of each weight, where that of its row's most is 1; and what the script needs to undo that, packed."""
    roots, kept = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    for weights in layers:
        patches = weights[..., prefix:]  # (H, T, N)
        highest = patches.max(axis=-1, keepdims=True)  # (H, T, 1)
        roots.append(np.sqrt(patches / np.maximum(highest, np.finfo(np.float32).tiny)).ravel())
        kept.append(np.concatenate([highest, weights[..., :prefix]], axis=-1).ravel())  # H T (1 + p)
    rows = np.rint(np.concatenate(kept).clip(0, 1) * WHOLE).astype("<u2")
    return np.concatenate(roots), deflated(rows)


def _entropy(levels: NDArray[np.uint8]) -> float:
    """About how many letters of base 64 these bytes need, were each coded by itself; told from every eleventh."""
    shares = np.bincount(levels[::11], minlength=1) / max(1, len(levels[::11]))
    bits = -float((shares * np.log2(shares, where=shares > 0, out=np.zeros_like(shares))).sum())
    return bits * len(levels) / 6


def deflated(array: NDArray[Any]) -> str:
    """The bytes of an array, deflated and written in base 64; nothing for nothing."""
    return b64encode(zlib.compress(array.tobytes(), 6)).decode() if array.size else ""


def joined(weights: Array, layout: Layout, fewer: Grid) -> Array:
    """Attention (H, T, T) among fewer cells; rows still sum to one."""
    return coarse(torch.from_numpy(weights), layout, fewer).numpy()


def joined_similarity(similarity: Array, grid: Grid, fewer: Grid) -> Array:
    """The mean similarity of what is in one cell with what is in another, for fewer cells."""
    if not similarity.size:
        return similarity
    layout = Layout(0, 0, grid)
    sizes = among_cells(torch.ones(grid.cells()), layout, fewer)  # (N,)
    return (coarse(torch.from_numpy(similarity), layout, fewer) / sizes).numpy()  # (N, N)
