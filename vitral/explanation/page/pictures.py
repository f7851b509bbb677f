"""Arrays as pictures that a page can hold in itself, and the colors of heat.

h x w pixels, C channels, R x S patches, n filters.

Attention and similarity in few bytes, for a script to unpack.
"""

import zlib
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import viewable
from vitral.explanation.attention_distance import among_cells, coarse
from vitral.explanation.explanation import Array, Explanation
from vitral.models.base import Grid, Layout

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


# From night through ruby to candle light for what is above nothing; from night to ice for what is below.
WARM = ((0, 0, 4), (33, 12, 74), (86, 16, 110), (136, 34, 106), (187, 55, 84), (228, 90, 49), (249, 142, 8),
        (250, 193, 39), (252, 255, 164))  # fmt: skip
COLD = ((0, 0, 4), (10, 36, 78), (20, 84, 140), (70, 160, 214), (214, 243, 255))
SMALL = 160  # pixels: a picture no larger is shown as it is, its pixels as squares
MOST_TILES = 14  # rows and columns of positions that are drawn, spread evenly
MOST_CELLS = 28  # rows and columns inside one of them
LEAD = 96  # gray of the lines between panes
GAP = 2  # pixels between tiles
MOSAIC = 640  # pixels across, about


class Mosaic(NamedTuple):
    """The similarity of positions as a grid of grids."""

    picture: Pixels  # (h, w, 3)
    tiles: Grid  # positions that have a tile
    cells: Grid  # positions that are drawn in each tile


def address(pixels: Pixels, side: int = 1024, quality: int = 86) -> str:
    """The picture as an address that holds it: a JPEG of at most `side` pixels, a small picture as it is, as PNG."""
    picture = viewable(pixels)
    if max(picture.size) <= SMALL:
        return drawing(np.asarray(picture))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _address(picture, "jpeg", quality=quality)


def drawing(pixels: Pixels) -> str:
    """The picture (h, w, 3) as an address that holds it exactly, as PNG."""
    return _address(Image.fromarray(pixels), "png", optimize=True)


def _address(picture: Image.Image, kind: str, **options: object) -> str:
    stream = BytesIO()
    picture.save(stream, kind, **options)
    return f"data:image/{kind};base64,{b64encode(stream.getvalue()).decode()}"


def addresses(pictures: Sequence[Pixels], most: int) -> tuple[str, ...]:
    """Addresses of all the pictures, smaller ones where they would take more bytes than `most` together."""
    exact = [drawing(np.asarray(viewable(pixels))) for pixels in pictures]
    made: tuple[str, ...] = ()
    for side, quality in ((640, 84), (320, 80), (160, 76), (96, 70)):
        lossy = (address(pixels, side, quality) for pixels in pictures)
        made = tuple(min(pair, key=len) for pair in zip(exact, lossy, strict=True))  # PNG for drawings, JPEG for photos
        if sum(map(len, made)) <= most:
            break
    return made


def heat(values: Array) -> Pixels:
    """Colors (..., 3) of values from -1 to 1: the nearer to nothing, the darker."""
    places = np.clip(np.nan_to_num(values), -1, 1)[..., None]  # (..., 1)
    return np.where(places < 0, _along(COLD, -places), _along(WARM, places)).round().astype(np.uint8)  # (..., 3)


def _along(stops: Sequence[tuple[int, int, int]], places: Array) -> Array:
    """Colors at places from 0 to 1 along the stops; those out of range are as at the ends."""
    at = np.linspace(0, 1, len(stops))  # (stops,)
    channels = [np.interp(places[..., 0], at, [stop[channel] for stop in stops]) for channel in range(3)]
    return np.stack(channels, axis=-1)  # (..., 3)


def filter_pictures(filters: Array) -> list[Pixels]:
    """Each filter (h, w, C) in colors of its own, from its least weight to its greatest; nothing is mid-gray."""
    if not len(filters):
        return []
    shown = filters if filters.shape[-1] == 3 else filters.mean(axis=-1, keepdims=True).repeat(3, axis=-1)
    most = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)  # (n, 1, 1, 1)
    unit = shown / np.maximum(most, np.finfo(np.float32).tiny)  # (n, h, w, 3)
    return list((127.5 + 127.5 * unit).round().astype(np.uint8))  # n of (h, w, 3)


def mosaic(positions: Array) -> Mosaic:
    """How alike the positions (R, S, R, S) are: a tile for each position, between dark lines."""
    rows, columns = positions.shape[:2]
    tiles = Grid(min(rows, MOST_TILES), min(columns, MOST_TILES))
    cells = Grid(min(rows, MOST_CELLS), min(columns, MOST_CELLS))
    places = [_spread(rows, tiles.rows), _spread(columns, tiles.columns)]
    places += [_spread(rows, cells.rows), _spread(columns, cells.columns)]
    colors = heat(positions[np.ix_(*places)])  # (tiles, cells, 3)
    times = max(1, MOSAIC // (tiles.columns * cells.columns))
    large = colors.repeat(times, axis=2).repeat(times, axis=3)
    framed = np.pad(large, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=LEAD)
    joined = framed.transpose(0, 2, 1, 3, 4).reshape(tiles.rows * framed.shape[2], -1, 3)
    return Mosaic(np.ascontiguousarray(joined[:-GAP, :-GAP]), tiles, cells)


def _spread(side: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """So many of the rows or columns, spread evenly from the first to the last."""
    return np.linspace(0, side - 1, count).round().astype(np.intp)


def panes(pixels: Pixels, grid: Grid) -> list[str]:
    """The mean color of each cell of a grid over the picture, row by row, as a style sheet writes it."""
    picture = np.asarray(viewable(pixels).resize((grid.columns, grid.rows), Image.Resampling.BOX))
    return ["#" + bytes(color).hex() for color in picture.reshape(-1, 3)]


def icon(pixels: Pixels) -> str:
    """The picture as sixteen panes of glass, for the tab of a browser."""
    return drawing(np.asarray(viewable(pixels).resize((4, 4), Image.Resampling.BOX).resize((32, 32), 0)))
