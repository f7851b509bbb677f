"""Figures of pictures: maps over the photo, attention of every head, colours of features, filters, positions.

R x S patches, r x s cells that are shown, L layers, H heads, T tokens, n filters.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitral.data.thumbnail import viewable
from vitral.explain.canvas import INK, SOFT, WARM, bare, glow, place, scale, sheet, unit
from vitral.explain.explanation import Array, Explanation, HeatMap, LayerView, ModelView, Photo
from vitral.explain.faithful import verdicts
from vitral.explain.pictures import filter_pictures, mosaic

STANDING = {"better": "better than chance", "worse": "worse than chance", "unclear": "not clearly better than chance"}
SIDE = 4.2  # inches of a photo's longer side
LEAST = 7.0  # inches of paper, so that a title has room


def map_figure(explanation: Explanation, heat: HeatMap) -> Figure:
    """The photo with the part that was seen, and the map on it at its place."""
    photo = explanation.photo
    width, height = inches(photo)
    about = f" for {explanation.target}" if explanation.target and heat.kind in {"relevance", "occlusion"} else ""
    below = f"{photo.name}, seen by {explanation.title}{standing(explanation, heat)}"
    stacked = width > 1.8 * height
    paper = max(width + 0.6 if stacked else 2 * width + 0.9, LEAST)
    left = (paper - width) / 2 if stacked else paper / 2 - 0.15 - width
    right, bottom = (left, 0.95) if stacked else (paper / 2 + 0.15, 0.95)
    figure = sheet(paper, (2 * height + 0.4 if stacked else height) + 1.1, f"{heat.title}{about}", below)
    show_photo(place(figure, left, bottom + height + 0.4 if stacked else bottom, width, height), photo)
    axes = place(figure, right, bottom, width, height)
    axes.imshow(glow(photo, unit(heat.values)), aspect="auto")
    bare(axes)
    low = -1.0 if heat.values.min() < 0 else 0.0
    words = "how much a patch counts, of the most" if low == 0 else "how much a patch counts; below 0 against the class"
    scale(figure, place(figure, right, 0.62, width, 0.12), low, 1.0, words)
    return figure


def standing(explanation: Explanation, heat: HeatMap) -> str:
    """How the map did in the test, if there was one."""
    found = [verdict for verdict in verdicts(explanation.faithfulness) if verdict.kind == heat.kind]
    return f"; {STANDING[found[0].standing]} in deletion and insertion" if found else ""


def inches(photo: Photo) -> tuple[float, float]:
    """Width and height of the photo on paper."""
    height, width = photo.picture.shape[:2]
    longer = (SIDE if width <= 1.8 * height else LEAST - 0.6) / max(height, width)
    return longer * width, longer * height


def show_photo(axes: Axes, photo: Photo) -> None:
    """The photo, with a frame around what the model saw of it."""
    height, width = photo.picture.shape[:2]
    axes.imshow(photo.picture, extent=(0, width, height, 0), aspect="auto", interpolation=smoothing(width))
    axes.set(xlim=(0, width), ylim=(height, 0))
    bare(axes)
    if min(photo.height, photo.width) > 0.995:
        axes.set_xlabel("the model saw all of it", color=SOFT, size=9)
        return
    axes.set_xlabel("framed: what the model saw", color=SOFT, size=9)
    corner, size = (photo.left * width, photo.top * height), (photo.width * width, photo.height * height)
    for thick, colour in ((3.4, "#ffffff"), (1.4, INK)):
        axes.add_patch(Rectangle(corner, *size, fill=False, linewidth=thick, edgecolor=colour))


def smoothing(side: int) -> str:
    return "nearest" if side < 100 else "antialiased"


def attention_figure(explanation: Explanation) -> Figure:
    """What is looked at in every layer, a row, by every head, a column."""
    layers = [layer for layer in explanation.layers if layer.attention.size]
    heads = max(len(layer.attention) for layer in layers)
    tile = min(1.0, 12 / heads)
    tall = tile * explanation.shown.rows / explanation.shown.columns
    reader = "the class token" if explanation.layout.cls else "the patches, in the mean"
    below = (
        f"{explanation.photo.name}, seen by {explanation.title}: attention of {reader}; each pane up to its own most"
    )
    figure = sheet(max(heads * tile + 1.2, LEAST), len(layers) * tall + 0.6, "Where each head looks", below)
    for row, layer in enumerate(layers):
        bottom = 0.25 + (len(layers) - 1 - row) * tall
        for head, values in enumerate(read_by(layer, explanation)):
            axes = place(figure, 0.9 + head * tile, bottom, tile * 0.94, tall * 0.94)
            axes.imshow(unit(values), cmap=WARM, vmin=0, vmax=1, aspect="auto")
            bare(axes)
            if not row:
                axes.set_title(f"head {head + 1}", size=8, color=SOFT, pad=3)
            if not head:
                axes.set_ylabel(f"layer {layer.layer}", size=8, color=SOFT, rotation=0, ha="right", va="center")
    return figure


def read_by(layer: LayerView, explanation: Explanation) -> Array:
    """What is looked at (H, r, s): by the class token, or by the patches in the mean where there is none."""
    prefix = explanation.layout.prefix()
    rows = layer.attention[:, 0] if explanation.layout.cls else layer.attention[:, prefix:].mean(axis=1)  # (H, T)
    return rows[:, prefix:].reshape(-1, *explanation.shown)


def colours_figure(explanation: Explanation) -> Figure:
    """What the model saw, and its last features in colours: like colours, like features."""
    seen = viewable(explanation.photo.seen)
    height = SIDE * seen.height / seen.width
    below = f"{explanation.photo.name}, seen by {explanation.title}: the first three principal components of its tokens"
    figure = sheet(2 * SIDE + 0.9, height + 0.55, "What the model holds for alike", below)
    left, right = (place(figure, 0.3 + shift, 0.4, SIDE, height) for shift in (0.0, SIDE + 0.3))
    left.imshow(np.asarray(seen), aspect="auto", interpolation=smoothing(seen.width))
    right.imshow(explanation.colours.clip(0, 1), aspect="auto", interpolation="nearest")
    for axes, words in ((left, "what the model saw"), (right, "like colours, like features")):
        bare(axes)
        axes.set_xlabel(words, color=SOFT, size=9)
    return figure


def filters_figure(view: ModelView, title: str) -> Figure:
    """The principal components of the first layer's filters (Fig. 7, left)."""
    tiles, columns = filter_pictures(view.filters), 7
    rows = -(-len(tiles) // columns)
    told = f"{title}: the first {len(tiles)} principal components, {view.shares.sum():.0%} of the variance"
    figure = sheet(columns * 1.05 + 0.6, rows * 1.2 + 0.3, "What the first layer looks for", told)
    for number, (pixels, share) in enumerate(zip(tiles, view.shares, strict=True)):
        row, column = divmod(number, columns)
        axes = place(figure, 0.3 + column * 1.05, 0.3 + (rows - 1 - row) * 1.2, 0.95, 0.95)
        axes.imshow(pixels, aspect="auto", interpolation="nearest")
        bare(axes)
        axes.set_xlabel(f"{number + 1}: {share:.1%}", color=SOFT, size=7.5, labelpad=2)
    return figure


def positions_figure(view: ModelView, title: str) -> Figure:
    """Cosine similarity of position embeddings as a grid of grids (Fig. 7, centre)."""
    found = mosaic(view.positions)
    rows, columns = view.positions.shape[:2]
    tall = 6.0 * found.picture.shape[0] / found.picture.shape[1]
    some = "" if found.tiles == (rows, columns) else f", {found.tiles} of the {rows}x{columns}"
    below = f"{title}: a tile is a place{some}; it shows how like all others are"
    figure = sheet(7.0, tall + 1.2, "Which places the model holds for near", below)
    axes = place(figure, 0.6, 1.0, 6.0, tall)
    axes.imshow(found.picture, aspect="auto", interpolation="nearest")
    bare(axes)
    axes.set_ylabel("row of the patch", color=SOFT, size=9)
    axes.set_xlabel("column of the patch", color=SOFT, size=9)
    scale(figure, place(figure, 0.6, 0.5, 6.0, 0.12), -1.0, 1.0, "cosine similarity")
    return figure
