"""Pictures for the walk-through: an image cut into its patches, and vectors as strips of color.

h x w pixels, C channels, P x Q pixels a patch, R x S patches, n strips of D numbers.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import viewable
from vitral.explanation.explanation import Array
from vitral.explanation.page.pictures import LEAD, heat
from vitral.models.base import Grid

Color = tuple[int, int, int]
MARKS: tuple[Color, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
)  # orange, sky and green, which no eye confuses
LEAD_COLOR = (LEAD, LEAD, LEAD)
SIDE = 448  # pixels: a smaller picture is enlarged, each pixel to a square
LENGTH = 720  # pixels of a strip, about
THICK, GAP, TAG = 22, 6, 14  # of a strip, between two, and of the mark at its left
BRIGHT = 98.0  # the percentile that has the brightest color, so that a few strange numbers do not darken the rest


def cut_up(seen: Pixels, grid: Grid, marked: Sequence[int] = ()) -> Pixels:
    """The picture with gaps between its patches, and a frame in its mark's color around each marked one."""
    times = max(1, SIDE // max(seen.shape[:2]))
    large = np.asarray(viewable(seen)).repeat(times, axis=0).repeat(times, axis=1)  # (h, w, 3)
    height, width = large.shape[0] // grid.rows, large.shape[1] // grid.columns
    gap = max(2, min(height, width) // 8)
    tiles = large.reshape(grid.rows, height, grid.columns, width, 3)
    glass = np.pad(tiles, ((0, 0), (gap, 0), (0, 0), (gap, 0), (0, 0)), constant_values=LEAD)
    joined = glass.reshape(grid.rows * (height + gap), grid.columns * (width + gap), 3)
    whole = np.pad(joined, ((0, gap), (0, gap), (0, 0)), constant_values=LEAD)
    for color, cell in zip(MARKS, marked, strict=False):
        row, column = divmod(cell, grid.columns)
        top, left = row * (height + gap), column * (width + gap)
        box = whole[top : top + height + 2 * gap, left : left + width + 2 * gap]
        inside = box[gap:-gap, gap:-gap].copy()
        box[:] = color
        box[gap:-gap, gap:-gap] = inside
    return whole


def examples(seen: Pixels, grid: Grid) -> list[int]:
    """Up to three patches that differ: the one with the most contrast, the one in the middle, and the plainest."""
    height, width, channels = seen.shape
    tiles = seen.reshape(grid.rows, height // grid.rows, grid.columns, width // grid.columns, channels)
    contrast = tiles.std(axis=(1, 3)).mean(axis=-1).ravel()  # (R S,)
    order = np.argsort(-contrast, kind="stable")
    return list(dict.fromkeys([int(order[0]), int(order[len(order) // 2]), int(order[-1])]))


def pixel_strips(patches: Sequence[Pixels]) -> Pixels:
    """Each patch (P, Q, C) as the line of numbers that it becomes: all of the first channel, then of the next."""
    strips = []
    for patch in patches:
        channels = patch.shape[-1]
        levels = patch.transpose(2, 0, 1).reshape(channels, -1, 1)  # (C, P Q, 1)
        tints = np.eye(3, dtype=np.uint8)[:, None] if channels == 3 else np.ones((channels, 1, 3), np.uint8)
        strips.append((levels * tints).reshape(-1, 3))  # (D, 3)
    return stacked(strips, MARKS)


def number_strips(rows: Array, marks: Sequence[Color] = ()) -> Pixels:
    """Each row (n, D) as a line of colors: warm above nothing, cold below, dark near it."""
    return stacked(list(heat(rows / brightest(rows))), marks)


def heat_panes(values: Array, grid: Grid, marked: Sequence[int] = ()) -> Pixels:
    """Values of the patches (R S,) as panes of color with gaps between them, the marked ones framed."""
    return cut_up(heat_colors(values, grid), grid, marked)


def heat_picture(values: Array, grid: Grid) -> Pixels:
    """Values of the places of a map (R S,) as squares of color, side by side."""
    times = max(1, SIDE // max(grid))
    return heat_colors(values, grid).repeat(times, axis=0).repeat(times, axis=1)


def heat_colors(values: Array, grid: Grid) -> Pixels:
    """A color for each value, (R, S, 3), the brightest for the farthest from nothing."""
    most = max(float(np.abs(values).max()), float(np.finfo(np.float32).tiny))
    return heat(values / most).reshape(*grid, 3)


def brightest(values: Array) -> float:
    return max(float(np.percentile(np.abs(values), BRIGHT)), float(np.finfo(np.float32).tiny))


def stacked(strips: Sequence[Pixels], marks: Sequence[Color]) -> Pixels:
    """Lines of colors (D, 3) as strips below each other, each with its mark at the left if there are marks."""
    parts = []
    for place, strip in enumerate(strips):
        line = strip[None].repeat(max(1, LENGTH // len(strip)), axis=1)  # (1, w, 3)
        if line.shape[1] > 2 * LENGTH:
            line = np.asarray(Image.fromarray(line).resize((LENGTH, 1), Image.Resampling.BOX))
        for color in marks[place : place + 1]:
            tag = np.array([[color] * TAG + [LEAD_COLOR] * GAP], np.uint8)  # (1, TAG + GAP, 3)
            line = np.concatenate([tag, line], axis=1)
        between = GAP if place < len(strips) - 1 else 0
        bar = line.repeat(THICK, axis=0)  # (THICK, w, 3)
        parts.append(np.pad(bar, ((0, between), (0, 0), (0, 0)), constant_values=LEAD))
    return np.concatenate(parts)
