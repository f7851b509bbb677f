"""The figures of an explanation: each is readable alone, in colors that every eye can tell apart.

Figures of numbers: attention distance, what is read at each depth, the test of the maps.
Figures of pictures: maps over the photo, attention of every head, colors of features, filters, positions.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vitral.core.errors import VitralError
from vitral.data.thumbnails import viewable
from vitral.explanation.explanation import Array, Explanation, HeatMap, LayerView, ModelView, Photo
from vitral.explanation.faithfulness import verdicts
from vitral.explanation.figures.canvas import (
    HUES,
    INK,
    LINE,
    MARKERS,
    SOFT,
    WARM,
    Drawing,
    bare,
    chart,
    glow,
    place,
    plain,
    scale,
    sheet,
    unit,
)
from vitral.explanation.page.pictures import filter_pictures, mosaic

MOST_CLASSES = 5  # that have a line


def distance_figure(view: ModelView, title: str) -> Figure:
    """Mean attention distance of every head by depth (Fig. 7, right)."""
    layers, heads = view.distances.shape
    over = "one image" if view.images == 1 else f"{view.images:,} images"
    figure = sheet(7.2, 4.4, "How far attention looks", f"{title}: a dot is a head, the line their mean, over {over}")
    axes = place(figure, 0.8, 0.65, 6.1, 3.6)
    chart(axes, "layer", "mean attention distance, pixels")
    numbers = np.arange(1, layers + 1)
    axes.scatter(numbers.repeat(heads), view.distances.ravel(), s=30, color=HUES[0], alpha=0.6, linewidths=0)
    axes.plot(numbers, view.distances.mean(axis=1), color=HUES[1], linewidth=2)
    axes.set_xlim(0.5, layers + 0.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def depth_figure(explanation: Explanation) -> Figure:
    """The probability of the classes that matter, if each layer were the last."""
    read = [layer for layer in explanation.layers if layer.probabilities.size]
    chances = np.stack([layer.probabilities for layer in read])  # (L, K)
    best = np.argsort(-explanation.probabilities, kind="stable")[:MOST_CLASSES]
    asked = [label for label, name in enumerate(explanation.classes) if name == explanation.target]
    below = f"{explanation.photo.name}: the head of {explanation.title} after each layer, as if it were the last"
    figure = sheet(8.2, 4.4, "What can be read at each depth", below)
    axes = place(figure, 0.8, 0.65, 4.9, 3.6)
    chart(axes, "layer", "probability")
    for style, label in enumerate(dict.fromkeys([*best.tolist(), *asked])):
        line(axes, [layer.layer for layer in read], chances[:, label], style, short(explanation.classes[label], 28))
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, labelcolor=INK, fontsize=9)
    return figure


def trials_figure(explanation: Explanation) -> Figure:
    """Deletion and insertion curves of every map, before the band of random ones."""
    tried = explanation.faithfulness
    titles = {heat.kind: heat.title for heat in explanation.maps}
    below = f"{explanation.photo.name}: probability of {explanation.target} while the patches of a map, best first, ..."
    figure = sheet(10.4, 5.1, "Which map to believe", below)
    curves = {titles[trial.kind]: [trial.curve] for trial in tried.trials} | {"random maps": list(tried.chance)}
    gone = {name: [curve.deletion for curve in each] for name, each in curves.items()}
    back = {name: [curve.insertion for curve in each] for name, each in curves.items()}
    shares = tried.chance[0].shares
    trial_axes(place(figure, 0.75, 1.75, 4.4, 3.05), shares, gone, "... go: the sooner it falls the better")
    trial_axes(place(figure, 5.75, 1.75, 4.4, 3.05), shares, back, "... come back: the sooner it rises the better")
    return figure


def trial_axes(axes: Axes, shares: Array, lines: dict[str, list[Array]], title: str) -> None:
    """The curves (P,) of each map; where there are several of one name, their mean and spread."""
    chart(axes, "share of the patches", "probability")
    axes.set_title(title, size=10, color=INK, loc="left")
    for style, (name, values) in enumerate(lines.items()):
        mean = np.mean(values, axis=0)  # (P,)
        area = f"{name}: area {np.trapezoid(mean, shares):.2f}"
        if len(values) == 1:
            line(axes, shares, mean, style, area)
            continue
        spread = np.std(values, axis=0, ddof=1)  # (P,)
        axes.fill_between(shares, mean - spread, mean + spread, color=LINE, linewidth=0, zorder=1)
        axes.plot(shares, mean, color=SOFT, linewidth=1.5, linestyle="--", label=area, zorder=1.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), frameon=False, labelcolor=INK, fontsize=8.5)


def line(axes: Axes, across: Sequence[int] | Array, values: Array, style: int, name: str) -> None:
    """A line that differs from the others in color and in its markers."""
    color, marker = HUES[style % len(HUES)], MARKERS[style % len(MARKERS)]
    axes.plot(across, values, color=color, marker=marker, markersize=4.5, linewidth=1.8, label=plain(name))


def short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


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
    for thick, color in ((3.4, "#ffffff"), (1.4, INK)):
        axes.add_patch(Rectangle(corner, *size, fill=False, linewidth=thick, edgecolor=color))


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


def colors_figure(explanation: Explanation) -> Figure:
    """What the model saw, and its last features in colors: like colors, like features."""
    seen = viewable(explanation.photo.seen)
    height = SIDE * seen.height / seen.width
    below = f"{explanation.photo.name}, seen by {explanation.title}: the first three principal components of its tokens"
    figure = sheet(2 * SIDE + 0.9, height + 0.55, "What the model holds for alike", below)
    left, right = (place(figure, 0.3 + shift, 0.4, SIDE, height) for shift in (0.0, SIDE + 0.3))
    left.imshow(np.asarray(seen), aspect="auto", interpolation=smoothing(seen.width))
    right.imshow(explanation.colors.clip(0, 1), aspect="auto", interpolation="nearest")
    for axes, words in ((left, "what the model saw"), (right, "like colors, like features")):
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
    """Cosine similarity of position embeddings as a grid of grids (Fig. 7, center)."""
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


def figures(explanation: Explanation) -> dict[str, Drawing]:
    """Every figure that there is something to draw in, by name: those of the image, then those of the model."""
    return {each.name: each for each in [*image_figures(explanation), *model_figures(explanation)]}


def image_figures(explanation: Explanation) -> list[Drawing]:
    """What is to be seen of the image."""
    layers = explanation.layers
    found = [Drawing(heat.kind, heat.title, partial(map_figure, explanation, heat)) for heat in explanation.maps]
    if any(layer.attention.size for layer in layers):
        found.append(Drawing("heads", "Where each head looks", partial(attention_figure, explanation)))
    if any(layer.probabilities.size for layer in layers):
        found.append(Drawing("depth", "What can be read at each depth", partial(depth_figure, explanation)))
    if explanation.faithfulness.trials:
        found.append(Drawing("believe", "Which map to believe", partial(trials_figure, explanation)))
    if explanation.colors.size:
        found.append(Drawing("features", "What the model holds for alike", partial(colors_figure, explanation)))
    return found


def model_figures(explanation: Explanation) -> list[Drawing]:
    """What is to be seen of the model, whatever the image: Fig. 7 of the paper."""
    view, title = explanation.model, explanation.title
    found = []
    if len(view.filters):
        found.append(Drawing("filters", "What the first layer looks for", partial(filters_figure, view, title)))
    if view.positions.size:
        found.append(
            Drawing("positions", "Which places the model holds for near", partial(positions_figure, view, title))
        )
    if view.distances.size:
        found.append(Drawing("distance", "How far attention looks", partial(distance_figure, view, title)))
    return found


def write_figures(folder: Path, explanations: Sequence[Explanation]) -> list[Path]:
    """Every figure as a PNG: `cat-rollout.png` of an image, `model-filters.png` of the model that they share."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot be made: {(error.strerror or str(error)).lower()}"
        raise VitralError(message, code="file.write_failed", where=str(folder), hint="name another folder") from None
    written = []
    for name, explanation in zip(distinct([each.photo.name for each in explanations]), explanations, strict=True):
        written += [(folder / f"{name}-{each.name}.png", each) for each in image_figures(explanation)]
    written += [(folder / f"model-{each.name}.png", each) for each in model_figures(explanations[0])]
    for path, drawing in written:
        drawing.save(path)
    return [path for path, _ in written]


def distinct(names: Sequence[str]) -> list[str]:
    """Names of files without their endings, a number after those that were there before: `cat`, `cat-2`."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems
