"""The figures of an explanation as PNG files, each readable alone, in colors that are safe for color-blind readers."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vitral.core.errors import VitralError
from vitral.data.thumbnails import to_rgb_image
from vitral.explanation.explanation import MAP_TITLES, Array, Explanation, LayerView, MapKind, ModelView, Photo
from vitral.explanation.faithfulness import score_maps
from vitral.explanation.figures import canvas
from vitral.explanation.figures.canvas import ExplanationFigure
from vitral.explanation.page.pictures import filter_pictures, position_mosaic, scale_to_unit

MOST_CLASSES = 5  # that have a line


def distance_figure(view: ModelView, title: str) -> Figure:
    """Mean attention distance of every head by depth (Fig. 7, right)."""
    layers, heads = view.distances.shape
    over = "one image" if view.images == 1 else f"{view.images:,} images"
    figure = canvas.new_figure(
        7.2, 4.4, "Attention distance", f"{title}: one dot per head and the mean of each layer, over {over}"
    )
    axes = canvas.add_axes(figure, 0.8, 0.65, 6.1, 3.6)
    canvas.style_plot(axes, "layer", "mean attention distance, pixels")
    numbers = np.arange(1, layers + 1)
    axes.scatter(numbers.repeat(heads), view.distances.ravel(), s=30, color=canvas.HUES[0], alpha=0.6, linewidths=0)
    axes.plot(numbers, view.distances.mean(axis=1), color=canvas.HUES[1], linewidth=2)
    axes.set_xlim(0.5, layers + 0.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def logit_lens_figure(explanation: Explanation) -> Figure:
    """The probability of the leading classes if each layer were the last."""
    layers = [layer for layer in explanation.layers if layer.probabilities.size]
    probabilities = np.stack([layer.probabilities for layer in layers])  # (L, K)
    best = np.argsort(-explanation.probabilities, kind="stable")[:MOST_CLASSES]
    target = [label for label, name in enumerate(explanation.classes) if name == explanation.target]
    subtitle = f"{explanation.photo.name}: norm, pool and head of {explanation.model_name} applied after each layer"
    figure = canvas.new_figure(8.2, 4.4, "Logit lens", subtitle)
    axes = canvas.add_axes(figure, 0.8, 0.65, 4.9, 3.6)
    canvas.style_plot(axes, "layer", "probability")
    for style, label in enumerate(dict.fromkeys([*best.tolist(), *target])):
        plot_line(
            axes,
            [layer.layer for layer in layers],
            probabilities[:, label],
            style,
            short(explanation.classes[label], 28),
        )
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, labelcolor=canvas.INK, fontsize=9)
    return figure


def faithfulness_figure(explanation: Explanation) -> Figure:
    """Deletion and insertion curves of every map, and the band of random maps."""
    faithfulness = explanation.faithfulness
    subtitle = f"{explanation.photo.name}: probability of {explanation.target} while the patches, highest first, ..."
    figure = canvas.new_figure(10.4, 5.1, "Faithfulness of the maps", subtitle)
    curves = {MAP_TITLES[kind]: [curve] for kind, curve in faithfulness.curves.items()}
    curves["random maps"] = list(faithfulness.random)
    deletion = {name: [curve.deletion for curve in each] for name, each in curves.items()}
    insertion = {name: [curve.insertion for curve in each] for name, each in curves.items()}
    fractions = faithfulness.random[0].fractions
    plot_curves(canvas.add_axes(figure, 0.75, 1.75, 4.4, 3.05), fractions, deletion, "... are deleted: lower is better")
    plot_curves(
        canvas.add_axes(figure, 5.75, 1.75, 4.4, 3.05), fractions, insertion, "... are inserted: higher is better"
    )
    return figure


def plot_curves(axes: Axes, fractions: Array, lines: dict[str, list[Array]], title: str) -> None:
    """The curves (P,) of each map; of several, their mean and standard deviation."""
    canvas.style_plot(axes, "fraction of the patches", "probability")
    axes.set_title(title, size=10, color=canvas.INK, loc="left")
    for style, (name, values) in enumerate(lines.items()):
        mean = np.mean(values, axis=0)  # (P,)
        area = f"{name}: area {np.trapezoid(mean, fractions):.2f}"
        if len(values) == 1:
            plot_line(axes, fractions, mean, style, area)
            continue
        std = np.std(values, axis=0, ddof=1)  # (P,)
        axes.fill_between(fractions, mean - std, mean + std, color=canvas.LINE, linewidth=0, zorder=1)
        axes.plot(fractions, mean, color=canvas.SOFT, linewidth=1.5, linestyle="--", label=area, zorder=1.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), frameon=False, labelcolor=canvas.INK, fontsize=8.5)


def plot_line(axes: Axes, x: Sequence[int] | Array, values: Array, style: int, name: str) -> None:
    """A line that differs from the others in color and marker."""
    color, marker = canvas.HUES[style % len(canvas.HUES)], canvas.MARKERS[style % len(canvas.MARKERS)]
    axes.plot(x, values, color=color, marker=marker, markersize=4.5, linewidth=1.8, label=canvas.plain_text(name))


def short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


VERDICTS = {"better": "better than random", "worse": "worse than random", "unclear": "not clearly better than random"}
SIDE = 4.2  # inches of the longer side of an image
MIN_WIDTH = 7.0  # inches, so that a title fits


def map_figure(explanation: Explanation, kind: MapKind) -> Figure:
    """The image with the crop, and the map over it."""
    photo, values = explanation.photo, explanation.maps[kind]
    width, height = photo_inches(photo)
    about = f" for {explanation.target}" if explanation.target and kind in {"relevance", "occlusion"} else ""
    subtitle = f"{photo.name}, explained by {explanation.model_name}{describe_verdict(explanation, kind)}"
    stacked = width > 1.8 * height
    paper = max(width + 0.6 if stacked else 2 * width + 0.9, MIN_WIDTH)
    left = (paper - width) / 2 if stacked else paper / 2 - 0.15 - width
    right, bottom = (left, 0.95) if stacked else (paper / 2 + 0.15, 0.95)
    figure = canvas.new_figure(
        paper, (2 * height + 0.4 if stacked else height) + 1.1, f"{MAP_TITLES[kind]}{about}", subtitle
    )
    show_photo(canvas.add_axes(figure, left, bottom + height + 0.4 if stacked else bottom, width, height), photo)
    axes = canvas.add_axes(figure, right, bottom, width, height)
    axes.imshow(canvas.overlay_map(photo, scale_to_unit(values)), aspect="auto")
    canvas.style_image(axes)
    low = -1.0 if values.min() < 0 else 0.0
    label = "importance, relative to the maximum" if low == 0 else "importance; negative values are against the class"
    canvas.add_colorbar(figure, canvas.add_axes(figure, right, 0.62, width, 0.12), low, 1.0, label)
    return figure


def describe_verdict(explanation: Explanation, kind: MapKind) -> str:
    """How the map did in the faithfulness test, if it was run."""
    score = score_maps(explanation.faithfulness).get(kind)
    return f"; {VERDICTS[score.verdict]} in deletion and insertion" if score else ""


def photo_inches(photo: Photo) -> tuple[float, float]:
    """Width and height of the image in the figure."""
    height, width = photo.image.shape[:2]
    longer = (SIDE if width <= 1.8 * height else MIN_WIDTH - 0.6) / max(height, width)
    return longer * width, longer * height


def show_photo(axes: Axes, photo: Photo) -> None:
    """The image, with a frame around the crop."""
    height, width = photo.image.shape[:2]
    axes.imshow(photo.image, extent=(0, width, height, 0), aspect="auto", interpolation=smoothing(width))
    axes.set(xlim=(0, width), ylim=(height, 0))
    canvas.style_image(axes)
    if min(photo.height, photo.width) > 0.995:
        axes.set_xlabel("the model is given the whole image", color=canvas.SOFT, size=9)
        return
    axes.set_xlabel("framed: what the model is given", color=canvas.SOFT, size=9)
    corner, size = (photo.left * width, photo.top * height), (photo.width * width, photo.height * height)
    for thick, color in ((3.4, "#ffffff"), (1.4, canvas.INK)):
        axes.add_patch(Rectangle(corner, *size, fill=False, linewidth=thick, edgecolor=color))


def smoothing(side: int) -> str:
    return "nearest" if side < 100 else "antialiased"


def attention_figure(explanation: Explanation) -> Figure:
    """Attention in every layer, a row, and every head, a column."""
    layers = [layer for layer in explanation.layers if layer.attention.size]
    heads = max(len(layer.attention) for layer in layers)
    tile = min(1.0, 12 / heads)
    tall = tile * explanation.cells.rows / explanation.cells.columns
    reader = "the class token" if explanation.layout.cls else "the patches, averaged"
    subtitle = f"{explanation.photo.name}, {explanation.model_name}: attention of {reader}; each scaled to its maximum"
    figure = canvas.new_figure(
        max(heads * tile + 1.2, MIN_WIDTH), len(layers) * tall + 0.6, "Attention of every head", subtitle
    )
    for row, layer in enumerate(layers):
        bottom = 0.25 + (len(layers) - 1 - row) * tall
        for head, values in enumerate(summary_attention(layer, explanation)):
            axes = canvas.add_axes(figure, 0.9 + head * tile, bottom, tile * 0.94, tall * 0.94)
            axes.imshow(scale_to_unit(values), cmap=canvas.POSITIVE_MAP, vmin=0, vmax=1, aspect="auto")
            canvas.style_image(axes)
            if not row:
                axes.set_title(f"head {head + 1}", size=8, color=canvas.SOFT, pad=3)
            if not head:
                axes.set_ylabel(f"layer {layer.layer}", size=8, color=canvas.SOFT, rotation=0, ha="right", va="center")
    return figure


def summary_attention(layer: LayerView, explanation: Explanation) -> Array:
    """The attention (H, r, s) of the class token, or the mean of the patches where there is none."""
    prefix = explanation.layout.prefix()
    rows = layer.attention[:, 0] if explanation.layout.cls else layer.attention[:, prefix:].mean(axis=1)  # (H, T)
    return rows[:, prefix:].reshape(-1, *explanation.cells)


def features_figure(explanation: Explanation) -> Figure:
    """The crop, and the last patch tokens in colors: similar colors, similar features."""
    crop = to_rgb_image(explanation.photo.crop)
    height = SIDE * crop.height / crop.width
    subtitle = (
        f"{explanation.photo.name}, {explanation.model_name}: the first three principal components of the patch tokens"
    )
    figure = canvas.new_figure(2 * SIDE + 0.9, height + 0.55, "Features in color", subtitle)
    left, right = (canvas.add_axes(figure, 0.3 + shift, 0.4, SIDE, height) for shift in (0.0, SIDE + 0.3))
    left.imshow(np.asarray(crop), aspect="auto", interpolation=smoothing(crop.width))
    right.imshow(explanation.feature_colors.clip(0, 1), aspect="auto", interpolation="nearest")
    for axes, label in ((left, "what the model is given"), (right, "similar colors, similar features")):
        canvas.style_image(axes)
        axes.set_xlabel(label, color=canvas.SOFT, size=9)
    return figure


def filters_figure(view: ModelView, title: str) -> Figure:
    """The principal components of the patch embedding filters (Fig. 7, left)."""
    tiles, columns = filter_pictures(view.filters), 7
    rows = -(-len(tiles) // columns)
    subtitle = (
        f"{title}: the first {len(tiles)} principal components, {view.explained_variance.sum():.0%} of the variance"
    )
    figure = canvas.new_figure(columns * 1.05 + 0.6, rows * 1.2 + 0.3, "Patch embedding filters", subtitle)
    for number, (pixels, share) in enumerate(zip(tiles, view.explained_variance, strict=True)):
        row, column = divmod(number, columns)
        axes = canvas.add_axes(figure, 0.3 + column * 1.05, 0.3 + (rows - 1 - row) * 1.2, 0.95, 0.95)
        axes.imshow(pixels, aspect="auto", interpolation="nearest")
        canvas.style_image(axes)
        axes.set_xlabel(f"{number + 1}: {share:.1%}", color=canvas.SOFT, size=7.5, labelpad=2)
    return figure


def positions_figure(view: ModelView, title: str) -> Figure:
    """Cosine similarity of position embeddings as a grid of grids (Fig. 7, center)."""
    mosaic = position_mosaic(view.positions)
    rows, columns = view.positions.shape[:2]
    tall = 6.0 * mosaic.picture.shape[0] / mosaic.picture.shape[1]
    some = "" if mosaic.tiles == (rows, columns) else f", {mosaic.tiles} of the {rows}x{columns}"
    subtitle = f"{title}: one tile per position{some}, compared with all others"
    figure = canvas.new_figure(7.0, tall + 1.2, "Position embedding similarity", subtitle)
    axes = canvas.add_axes(figure, 0.6, 1.0, 6.0, tall)
    axes.imshow(mosaic.picture, aspect="auto", interpolation="nearest")
    canvas.style_image(axes)
    axes.set_ylabel("row of the patch", color=canvas.SOFT, size=9)
    axes.set_xlabel("column of the patch", color=canvas.SOFT, size=9)
    canvas.add_colorbar(figure, canvas.add_axes(figure, 0.6, 0.5, 6.0, 0.12), -1.0, 1.0, "cosine similarity")
    return figure


def figures(explanation: Explanation) -> dict[str, ExplanationFigure]:
    """All figures by name: those of the image, then those of the model."""
    return {each.name: each for each in [*image_figures(explanation), *model_figures(explanation)]}


def image_figures(explanation: Explanation) -> list[ExplanationFigure]:
    """The figures of the image."""
    layers = explanation.layers
    draw: dict[str, Callable[[Explanation], Figure]] = {
        kind: partial(map_figure, kind=kind) for kind in explanation.maps
    }
    if any(layer.attention.size for layer in layers):
        draw["heads"] = attention_figure
    if any(layer.probabilities.size for layer in layers):
        draw["logit_lens"] = logit_lens_figure
    if explanation.faithfulness.curves:
        draw["faithfulness"] = faithfulness_figure
    if explanation.feature_colors.size:
        draw["features"] = features_figure
    return [ExplanationFigure(name, partial(figure, explanation)) for name, figure in draw.items()]


def model_figures(explanation: Explanation) -> list[ExplanationFigure]:
    """The figures of the model itself, as in Fig. 7 of the paper."""
    view = explanation.model
    draw = {
        "filters": (view.filters, filters_figure),
        "positions": (view.positions, positions_figure),
        "distance": (view.distances, distance_figure),
    }
    return [
        ExplanationFigure(name, partial(figure, view, explanation.model_name))
        for name, (values, figure) in draw.items()
        if values.size
    ]


def write_figures(folder: Path, explanations: Sequence[Explanation]) -> list[Path]:
    """Write every figure as PNG: `cat-rollout.png` of an image, `model-filters.png` of the model."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot be made: {(error.strerror or str(error)).lower()}"
        raise VitralError(message, code="file.write_failed", where=folder, hint="name another folder") from None
    written = []
    for name, explanation in zip(distinct_stems([each.photo.name for each in explanations]), explanations, strict=True):
        written += [(folder / f"{name}-{each.name}.png", each) for each in image_figures(explanation)]
    written += [(folder / f"model-{each.name}.png", each) for each in model_figures(explanations[0])]
    for path, drawing in written:
        drawing.save(path)
    return [path for path, _ in written]


def distinct_stems(names: Sequence[str]) -> list[str]:
    """File names without suffix, numbered where they repeat: `cat`, `cat-2`."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems
