"""Images and arrays of the page: data URIs, heat colors, and attention packed for the script.

h x w pixels, C channels, R x S patches, n filters.
"""

import zlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import encode_picture, to_rgb_image
from vitral.explanation.attention_distance import pool_attention, sum_cells
from vitral.explanation.explanation import Array, Explanation, Photo
from vitral.html.heatmap import NEGATIVE_COLORS, POSITIVE_COLORS
from vitral.models.base import Grid, Layout

STEPS = (255, 191, 127, 95, 63, 47, 31, 23, 15)  # between 0 and the maximum of a row; the finest that fits is taken
UINT16_MAX = 65535
HOPELESS = 1.25  # times the limit, by entropy: deflate does not save more than that


class PackedAttention(NamedTuple):
    """Attention and patch similarity, deflated, in base 64; empty where the model has none."""

    grid: Grid  # of the cells
    heads: tuple[int, ...]  # of each layer
    steps: int
    cells: str  # (L, H, T, N), a byte each: the square root of a weight; `steps` is that of the row's maximum
    rows: str  # (L, H, T, 1 + p), two bytes each, of 65,535: the row's maximum, then the weights of the p prefix tokens
    similarity: str  # (N, N), a byte each: 0 for -1, 255 for 1


def pack_attention(explanation: Explanation, max_bytes: int) -> PackedAttention:
    """Pack the arrays, attention into at most so many bytes: in coarser steps, and if needed in fewer cells."""
    layers = [layer.attention for layer in explanation.layers if layer.attention.size]
    layout, similarity = explanation.layout._replace(grid=explanation.cells), explanation.similarity
    heads = tuple(len(weights) for weights in layers)
    while True:
        roots, rows = _roots(layers, layout.prefix())
        alike = deflate(np.rint(127.5 * (similarity + 1)).clip(0, 255).astype(np.uint8))  # (N, N)
        for steps in STEPS:
            levels = np.rint(roots * steps).astype(np.uint8)
            if _entropy(levels) <= HOPELESS * max_bytes or steps == STEPS[-1]:
                cells = deflate(levels)
                if len(cells) + len(rows) <= max_bytes:
                    return PackedAttention(layout.grid, heads, steps, cells, rows, alike)
        fewer = Grid(-(-layout.grid.rows // 2), -(-layout.grid.columns // 2))
        if fewer == layout.grid:  # a single cell: nothing is left to join
            return PackedAttention(layout.grid, heads, steps, cells, rows, alike)
        layers = [pool_attention(torch.from_numpy(weights), layout, fewer).numpy() for weights in layers]
        similarity = coarsen_similarity(similarity, layout.grid, fewer)
        layout = layout._replace(grid=fewer)


def _roots(layers: Sequence[Array], prefix: int) -> tuple[Array, str]:
    """The square root of each weight relative to its row's maximum; and what the script needs to undo that, packed."""
    roots, kept = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    for weights in layers:
        patches = weights[..., prefix:]  # (H, T, N)
        highest = patches.max(axis=-1, keepdims=True)  # (H, T, 1)
        roots.append(np.sqrt(patches / np.maximum(highest, np.finfo(np.float32).tiny)).ravel())
        kept.append(np.concatenate([highest, weights[..., :prefix]], axis=-1).ravel())  # H T (1 + p)
    rows = np.rint(np.concatenate(kept).clip(0, 1) * UINT16_MAX).astype("<u2")
    return np.concatenate(roots), deflate(rows)


def _entropy(levels: NDArray[np.uint8]) -> float:
    """About how many base 64 characters these bytes need, estimated from the entropy of every eleventh."""
    shares = np.bincount(levels[::11], minlength=1) / max(1, len(levels[::11]))
    bits = -float((shares * np.log2(shares, where=shares > 0, out=np.zeros_like(shares))).sum())
    return bits * len(levels) / 6


def deflate(array: NDArray[Any]) -> str:
    """The bytes of an array, deflated, in base 64; empty for an empty array."""
    return b64encode(zlib.compress(array.tobytes(), 6)).decode() if array.size else ""


def coarsen_similarity(similarity: Array, grid: Grid, fewer: Grid) -> Array:
    """The mean similarity between the parts of larger cells."""
    if not similarity.size:
        return similarity
    layout = Layout(0, 0, grid)
    sizes = sum_cells(torch.ones(grid.cells()), layout, fewer)  # (N,)
    return (pool_attention(torch.from_numpy(similarity), layout, fewer) / sizes).numpy()  # (N, N)


MAX_PNG_SIDE = 160  # pixels: smaller images are stored exactly, and shown with square pixels
MOST_TILES = 14  # rows and columns of positions that are drawn, evenly spaced
MOST_CELLS = 28  # rows and columns inside one of them
GAP_GRAY = 96  # the gray between patches
GAP = 2  # pixels between tiles
MOSAIC = 640  # pixels across, about


class Mosaic(NamedTuple):
    """Position similarity as a grid of grids."""

    picture: Pixels  # (h, w, 3)
    tiles: Grid  # positions that have a tile
    cells: Grid  # positions that are drawn in each tile


def encode_image(pixels: Pixels, side: int = 1024, quality: int = 86) -> str:
    """The image as a data URI: a JPEG of at most `side` pixels; a small image as PNG."""
    picture = to_rgb_image(pixels)
    if max(picture.size) <= MAX_PNG_SIDE:
        return encode_png(np.asarray(picture))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return encode_picture(picture, "jpeg", quality)


def encode_png(pixels: Pixels) -> str:
    """The image (h, w, 3) as a data URI, as PNG."""
    return encode_picture(Image.fromarray(pixels), "png", optimize=True)


def scale_to_unit(values: NDArray[Any]) -> NDArray[Any]:
    """Values divided by their largest magnitude."""
    return values / max(float(np.abs(values).max(initial=0)), float(np.finfo(np.float32).tiny))


def encode_images(pictures: Sequence[Pixels], max_bytes: int) -> tuple[str, ...]:
    """Data URIs of all images, reduced until they take at most `max_bytes` together."""
    exact = [encode_png(np.asarray(to_rgb_image(pixels))) for pixels in pictures]
    encoded: tuple[str, ...] = ()
    for side, quality in ((640, 84), (320, 80), (160, 76), (96, 70)):
        lossy = (encode_image(pixels, side, quality) for pixels in pictures)
        pairs = zip(exact, lossy, strict=True)
        encoded = tuple(min(pair, key=len) for pair in pairs)  # PNG for drawings, JPEG for photos
        if sum(map(len, encoded)) <= max_bytes:
            break
    return encoded


def heat_colors(values: Array) -> Pixels:
    """Colors (..., 3) of values from -1 to 1; 0 is dark."""
    clipped = np.clip(np.nan_to_num(values), -1, 1)  # (...)
    cold, warm = _interpolate(NEGATIVE_COLORS, -clipped), _interpolate(POSITIVE_COLORS, clipped)  # each (..., 3)
    return np.where(clipped[..., None] < 0, cold, warm).round().astype(np.uint8)


def overlay_map(photo: Photo, values: Array) -> Pixels:
    """The image in gray with a map (R, S) of -1 to 1 over the crop; the rest is pale."""
    height, width = photo.image.shape[:2]
    times = max(1, round(640 / max(height, width)))
    height, width = height * times, width * times
    gray = np.asarray(Image.fromarray(photo.image).convert("L").resize((width, height)))
    base = np.repeat(gray[..., None], 3, axis=2).astype(np.float32)  # (h, w, 3)
    top, left = round(photo.top * height), round(photo.left * width)
    bottom, right = round((photo.top + photo.height) * height), round((photo.left + photo.width) * width)
    shown = 255 - (255 - base) * 0.45  # outside the crop
    size = (right - left, bottom - top)
    smooth = np.asarray(Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))
    share = (0.25 + 0.65 * np.abs(smooth.clip(-1, 1)) ** 0.8)[..., None]
    shown[top:bottom, left:right] = base[top:bottom, left:right] * 0.8 * (1 - share) + heat_colors(smooth) * share
    return shown.round().astype(np.uint8)


def _interpolate(stops: Sequence[tuple[int, int, int]], values: Array) -> Array:
    """Colors of values from 0 to 1 along the stops; values out of range get the color of the end."""
    at = np.linspace(0, 1, len(stops))  # (stops,)
    channels = [np.interp(values, at, [stop[channel] for stop in stops]) for channel in range(3)]
    return np.stack(channels, axis=-1)  # (..., 3)


def filter_pictures(filters: Array) -> list[Pixels]:
    """Each filter (h, w, C) as an image, scaled by its largest weight; 0 is mid-gray."""
    if not len(filters):
        return []
    shown = filters if filters.shape[-1] == 3 else filters.mean(axis=-1, keepdims=True).repeat(3, axis=-1)
    most = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)  # (n, 1, 1, 1)
    unit = shown / np.maximum(most, np.finfo(np.float32).tiny)  # (n, h, w, 3)
    return list((127.5 + 127.5 * unit).round().astype(np.uint8))  # n of (h, w, 3)


def position_mosaic(positions: Array) -> Mosaic:
    """Position similarity (R, S, R, S) as one image: a tile for each position."""
    rows, columns = positions.shape[:2]
    tiles = Grid(min(rows, MOST_TILES), min(columns, MOST_TILES))
    cells = Grid(min(rows, MOST_CELLS), min(columns, MOST_CELLS))
    counts = zip(positions.shape, (*tiles, *cells), strict=True)
    evenly = [np.linspace(0, side - 1, count).round().astype(np.intp) for side, count in counts]
    colors = heat_colors(positions[np.ix_(*evenly)])  # (tiles, cells, 3)
    times = max(1, MOSAIC // (tiles.columns * cells.columns))
    large = colors.repeat(times, axis=2).repeat(times, axis=3)
    framed = np.pad(large, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=GAP_GRAY)
    joined = framed.transpose(0, 2, 1, 3, 4).reshape(tiles.rows * framed.shape[2], -1, 3)
    return Mosaic(np.ascontiguousarray(joined[:-GAP, :-GAP]), tiles, cells)


def mean_colors(pixels: Pixels, grid: Grid) -> list[str]:
    """The mean color of each cell of a grid over the image, row by row, in CSS notation."""
    picture = np.asarray(to_rgb_image(pixels).resize((grid.columns, grid.rows), Image.Resampling.BOX))
    return ["#" + bytes(color).hex() for color in picture.reshape(-1, 3)]


def page_icon(pixels: Pixels) -> str:
    """The image reduced to 4 x 4 cells, as the icon of the page."""
    return encode_png(np.asarray(to_rgb_image(pixels).resize((4, 4), Image.Resampling.BOX).resize((32, 32), 0)))
