"""Images of the walkthrough: an image cut into its patches, and vectors as strips of color.

h x w pixels, C channels, P x Q pixels a patch, R x S patches, n strips of D numbers.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import to_rgb_image
from vitral.explanation.explanation import Array
from vitral.explanation.page.pictures import GAP_GRAY, heat_colors, scale_to_unit
from vitral.models.base import Grid

Color = tuple[int, int, int]
MARKS: tuple[Color, ...] = ((230, 159, 0), (86, 180, 233), (0, 158, 115))  # safe for color-blind readers
SIDE = 448  # pixels: a smaller image is enlarged, each pixel to a square
LENGTH = 720  # approximate length of a strip in pixels
THICK, GAP, TAG = 22, 6, 14  # of a strip, between two, and of the mark at its left
BRIGHT = 98.0  # the percentile that gets the brightest color, so that a few outliers do not darken the rest


def draw_patches(image: Pixels, grid: Grid, marked: Sequence[int] = ()) -> Pixels:
    """The image with gaps between its patches, and a colored frame around each marked one."""
    times = max(1, SIDE // max(image.shape[:2]))
    large = np.asarray(to_rgb_image(image)).repeat(times, axis=0).repeat(times, axis=1)  # (h, w, 3)
    height, width = large.shape[0] // grid.rows, large.shape[1] // grid.columns
    gap = max(2, min(height, width) // 8)
    tiles = large.reshape(grid.rows, height, grid.columns, width, 3)
    padded = np.pad(tiles, ((0, 0), (gap, 0), (0, 0), (gap, 0), (0, 0)), constant_values=GAP_GRAY)
    joined = padded.reshape(grid.rows * (height + gap), grid.columns * (width + gap), 3)
    whole = np.pad(joined, ((0, gap), (0, gap), (0, 0)), constant_values=GAP_GRAY)
    for color, cell in zip(MARKS, marked, strict=False):
        row, column = divmod(cell, grid.columns)
        top, left = row * (height + gap), column * (width + gap)
        box = whole[top : top + height + 2 * gap, left : left + width + 2 * gap]
        inside = box[gap:-gap, gap:-gap].copy()
        box[:] = color
        box[gap:-gap, gap:-gap] = inside
    return whole


def example_patches(image: Pixels, grid: Grid) -> list[int]:
    """Up to three patches: of the highest, the median and the lowest contrast."""
    height, width, channels = image.shape
    tiles = image.reshape(grid.rows, height // grid.rows, grid.columns, width // grid.columns, channels)
    contrast = tiles.std(axis=(1, 3)).mean(axis=-1).ravel()  # (R S,)
    order = np.argsort(-contrast, kind="stable")
    return list(dict.fromkeys([int(order[0]), int(order[len(order) // 2]), int(order[-1])]))


def draw_pixel_strips(patches: Sequence[Pixels]) -> Pixels:
    """Each patch (P, Q, C) as the vector that it is flattened to, one channel after the other."""
    strips = []
    for patch in patches:
        channels = patch.shape[-1]
        levels = patch.transpose(2, 0, 1).reshape(channels, -1, 1)  # (C, P Q, 1)
        tints = np.eye(3, dtype=np.uint8)[:, None] if channels == 3 else np.ones((channels, 1, 3), np.uint8)
        strips.append((levels * tints).reshape(-1, 3))  # (D, 3)
    return stack_strips(strips, MARKS)


def draw_vector_strips(rows: Array, marks: Sequence[Color] = ()) -> Pixels:
    """Each row (n, D) as a strip of heat colors."""
    return stack_strips(list(heat_colors(rows / brightest(rows))), marks)


def draw_heat_patches(values: Array, grid: Grid, marked: Sequence[int] = ()) -> Pixels:
    """Values of the patches (R S,) as heat colors with gaps between them, the marked ones framed."""
    return draw_patches(heat_cells(values, grid), grid, marked)


def draw_heat_grid(values: Array, grid: Grid) -> Pixels:
    """Values of a feature map (R S,) as squares of heat colors."""
    times = max(1, SIDE // max(grid))
    return heat_cells(values, grid).repeat(times, axis=0).repeat(times, axis=1)


def heat_cells(values: Array, grid: Grid) -> Pixels:
    """A heat color for each value (R, S, 3), scaled by the largest magnitude."""
    return heat_colors(scale_to_unit(values)).reshape(*grid, 3)


def brightest(values: Array) -> float:
    return max(float(np.percentile(np.abs(values), BRIGHT)), float(np.finfo(np.float32).tiny))


def stack_strips(strips: Sequence[Pixels], marks: Sequence[Color]) -> Pixels:
    """Rows of colors (D, 3) as strips below each other, each with its mark at the left."""
    parts = []
    for index, strip in enumerate(strips):
        line = strip[None].repeat(max(1, LENGTH // len(strip)), axis=1)  # (1, w, 3)
        if line.shape[1] > 2 * LENGTH:
            line = np.asarray(Image.fromarray(line).resize((LENGTH, 1), Image.Resampling.BOX))
        for color in marks[index : index + 1]:
            tag = np.array([[color] * TAG + [(GAP_GRAY,) * 3] * GAP], np.uint8)  # (1, TAG + GAP, 3)
            line = np.concatenate([tag, line], axis=1)
        between = GAP if index < len(strips) - 1 else 0
        bar = line.repeat(THICK, axis=0)  # (THICK, w, 3)
        parts.append(np.pad(bar, ((0, between), (0, 0), (0, 0)), constant_values=GAP_GRAY))
    return np.concatenate(parts)
