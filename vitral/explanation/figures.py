"""The figures of an explanation as PNG files, each readable alone, in colors that are safe for color-blind readers.

No global state of matplotlib is used.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vitral.core.storage import make_folders, wrap_write_errors, write_file_atomically
from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import to_rgb_image
from vitral.explanation.explanation import (
    MAP_TITLES,
    VERDICTS,
    Array,
    Explanation,
    LayerView,
    MapKind,
    ModelView,
    Photo,
)
from vitral.explanation.page.pictures import filter_pictures, heat_colors, overlay_map, position_mosaic, scale_to_unit
from vitral.html.page import printable

BACKGROUND, INK, SOFT, LINE = "#ffffff", "#1d2126", "#626a73", "#dedbd3"
# Okabe and Ito's colors, safe for color-blind readers, ordered so that neighbors differ in lightness.
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1d2126")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 144
HEAD = 0.85  # inches for title and subtitle
SIDE = 4.2  # inches of the longer side of an image
MIN_WIDTH = 7.0  # inches, so that a title fits
MAX_CLASSES = 5  # that have a line
POSITIVE_MAP = ListedColormap(heat_colors(np.linspace(0, 1, 256, dtype=np.float32)) / 255)
SIGNED_MAP = ListedColormap(heat_colors(np.linspace(-1, 1, 255, dtype=np.float32)) / 255)


class ExplanationFigure(NamedTuple):
    """A figure that is drawn on demand."""

    name: str  # of its file, without the suffix
    draw: Callable[[], Figure]

    def png(self) -> bytes:
        """The figure as a PNG."""
        stream = BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box replaces a missing glyph
            figure = self.draw()
            FigureCanvasAgg(figure)
            figure.savefig(stream, format="png")
        return stream.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the PNG."""
        write_file_atomically(Path(path).expanduser(), self.png())

    def _repr_png_(self) -> bytes:
        """The figure, for a notebook."""
        return self.png()


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
    view, name = explanation.model, explanation.model_name
    draw = [
        ("filters", view.filters, filters_figure),
        ("positions", view.positions, positions_figure),
        ("distance", view.distances, distance_figure),
    ]
    return [ExplanationFigure(kind, partial(figure, view, name)) for kind, values, figure in draw if values.size]


def write_figures(folder: Path, explanations: Sequence[Explanation]) -> list[Path]:
    """Write every figure as PNG: `cat-rollout.png` of an image, `model-filters.png` of the model."""
    with wrap_write_errors(folder):
        make_folders(folder)
    stems = distinct_stems([each.photo.name for each in explanations])
    drawn = {stem: image_figures(explanation) for stem, explanation in zip(stems, explanations, strict=True)}
    written = [(stem, figure) for stem, each in drawn.items() for figure in each]
    written += [("model", figure) for figure in model_figures(explanations[0])]
    paths = [folder / f"{stem}-{figure.name}.png" for stem, figure in written]
    for path, (_, figure) in zip(paths, written, strict=True):
        figure.save(path)
    return paths


def distinct_stems(names: Sequence[str]) -> list[str]:
    """File names without suffix, numbered where they repeat: `cat`, `cat-2`."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems


def new_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """An empty figure of so many inches below its title and subtitle, to be filled by `add_axes`."""
    top = height + HEAD
    figure = Figure(figsize=(width, top), dpi=DPI, facecolor=BACKGROUND)
    figure.text(0.3 / width, 1 - 0.3 / top, plain_text(title, width), size=14, weight="bold", color=INK, va="center")
    figure.text(0.3 / width, 1 - 0.58 / top, plain_text(subtitle, 1.65 * width), size=9, color=SOFT, va="center")
    return figure


def plain_text(text: str, inches: float = 100.0) -> str:
    """Text without math markup or control codes, shortened to fit so many inches of a title."""
    return printable(shorten(text, max(8, int(inches * 8.2)))).replace("$", r"\$")


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a position in inches from the lower left corner."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def add_image(axes: Axes, pixels: Array | Pixels, label: str = "", interpolation: str | None = None) -> None:
    """Fill axes with an image: no ticks, a thin frame, and a label below."""
    axes.imshow(pixels, aspect="auto", interpolation=interpolation, cmap=POSITIVE_MAP, vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(label, color=SOFT, size=9)
    for side in axes.spines.values():
        side.set(color=LINE, linewidth=0.8)


def style_plot(axes: Axes, x_label: str, y_label: str) -> None:
    """Style axes for a plot: a light grid, labels of both axes."""
    axes.set_xlabel(x_label, color=SOFT, size=10)
    axes.set_ylabel(y_label, color=SOFT, size=10)
    axes.tick_params(colors=SOFT, labelsize=9, length=0)
    axes.grid(True, color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for name, side in axes.spines.items():
        side.set(visible=name in {"bottom", "left"}, color=LINE)


def add_colorbar(axes: Axes, low: float, high: float, label: str) -> None:
    """Fill axes with a color bar of the heat colors, from low to high."""
    colors = ScalarMappable(Normalize(low, high), SIGNED_MAP if low < 0 else POSITIVE_MAP)
    assert isinstance(axes.figure, Figure)
    bar = axes.figure.colorbar(colors, cax=axes, orientation="horizontal")
    bar.set_label(label, color=SOFT, size=9)
    axes.tick_params(colors=SOFT, labelsize=8, length=2)
    bar.outline.set(edgecolor=LINE)


def plot_line(axes: Axes, x: Sequence[int] | Array, values: Array, style: int, name: str) -> None:
    """A line that differs from the others in color and marker."""
    color, marker = HUES[style % len(HUES)], MARKERS[style % len(MARKERS)]
    axes.plot(x, values, color=color, marker=marker, markersize=4.5, linewidth=1.8, label=plain_text(name))


def distance_figure(view: ModelView, title: str) -> Figure:
    """Mean attention distance of every head by depth (Fig. 7, right)."""
    layers, heads = view.distances.shape
    over = "one image" if view.images == 1 else f"{view.images:,} images"
    subtitle = f"{title}: one dot per head and the mean of each layer, over {over}"
    figure = new_figure(7.2, 4.4, "Attention distance", subtitle)
    axes = add_axes(figure, 0.8, 0.65, 6.1, 3.6)
    style_plot(axes, "layer", "mean attention distance, pixels")
    numbers = np.arange(1, layers + 1)
    axes.scatter(numbers.repeat(heads), view.distances.ravel(), s=30, color=HUES[0], alpha=0.6, linewidths=0)
    axes.plot(numbers, view.distances.mean(axis=1), color=HUES[1], linewidth=2)
    axes.set_xlim(0.5, layers + 0.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def logit_lens_figure(explanation: Explanation) -> Figure:
    """The probability of the leading classes if each layer were the last."""
    layers = [layer for layer in explanation.layers if layer.probabilities.size]
    probabilities = np.stack([layer.probabilities for layer in layers])  # (L, K)
    best = np.argsort(-explanation.probabilities, kind="stable")[:MAX_CLASSES]
    target = [label for label, name in enumerate(explanation.classes) if name == explanation.target]
    subtitle = f"{explanation.photo.name}: norm, pool and head of {explanation.model_name} applied after each layer"
    figure = new_figure(8.2, 4.4, "Logit lens", subtitle)
    axes = add_axes(figure, 0.8, 0.65, 4.9, 3.6)
    style_plot(axes, "layer", "probability")
    numbers = [layer.layer for layer in layers]
    for style, label in enumerate(dict.fromkeys([*best.tolist(), *target])):
        plot_line(axes, numbers, probabilities[:, label], style, shorten(explanation.classes[label], 28))
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, labelcolor=INK, fontsize=9)
    return figure


def faithfulness_figure(explanation: Explanation) -> Figure:
    """Deletion and insertion curves of every map, and the band of random maps."""
    faithfulness = explanation.faithfulness
    subtitle = f"{explanation.photo.name}: probability of {explanation.target} while the patches, highest first, ..."
    figure = new_figure(10.4, 5.1, "Faithfulness of the maps", subtitle)
    curves = {MAP_TITLES[kind]: [curve] for kind, curve in faithfulness.curves.items()}
    curves["random maps"] = list(faithfulness.random)
    deletion = {name: [curve.deletion for curve in each] for name, each in curves.items()}
    insertion = {name: [curve.insertion for curve in each] for name, each in curves.items()}
    fractions = faithfulness.random[0].fractions
    plot_curves(add_axes(figure, 0.75, 1.75, 4.4, 3.05), fractions, deletion, "... are deleted: lower is better")
    plot_curves(add_axes(figure, 5.75, 1.75, 4.4, 3.05), fractions, insertion, "... are inserted: higher is better")
    return figure


def plot_curves(axes: Axes, fractions: Array, lines: dict[str, list[Array]], title: str) -> None:
    """The curves (P,) of each map; of several, their mean and standard deviation."""
    style_plot(axes, "fraction of the patches", "probability")
    axes.set_title(title, size=10, color=INK, loc="left")
    for style, (name, values) in enumerate(lines.items()):
        mean = np.mean(values, axis=0)  # (P,)
        area = f"{name}: area {np.trapezoid(mean, fractions):.2f}"
        if len(values) == 1:
            plot_line(axes, fractions, mean, style, area)
            continue
        std = np.std(values, axis=0, ddof=1)  # (P,)
        axes.fill_between(fractions, mean - std, mean + std, color=LINE, linewidth=0, zorder=1)
        axes.plot(fractions, mean, color=SOFT, linewidth=1.5, linestyle="--", label=area, zorder=1.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), frameon=False, labelcolor=INK, fontsize=8.5)


def map_figure(explanation: Explanation, kind: MapKind) -> Figure:
    """The image with the crop, and the map over it."""
    photo, values = explanation.photo, explanation.maps[kind]
    rows, columns = photo.image.shape[:2]
    stacked = columns > 1.8 * rows
    inches = (MIN_WIDTH - 0.6 if stacked else SIDE) / max(rows, columns)  # of a pixel
    width, height = inches * columns, inches * rows
    paper = max(width + 0.6 if stacked else 2 * width + 0.9, MIN_WIDTH)
    left = (paper - width) / 2 if stacked else paper / 2 - 0.15 - width
    right, bottom = (left, 0.95) if stacked else (paper / 2 + 0.15, 0.95)
    about = f" for {explanation.target}" if explanation.target and kind in {"relevance", "occlusion"} else ""
    subtitle = f"{photo.name}, explained by {explanation.model_name}"
    if score := explanation.faithfulness.scores().get(kind):
        subtitle += f"; {VERDICTS[score.verdict]} in deletion and insertion"
    tall = (2 * height + 0.4 if stacked else height) + 1.1
    figure = new_figure(paper, tall, f"{MAP_TITLES[kind]}{about}", subtitle)
    show_photo(add_axes(figure, left, bottom + height + 0.4 if stacked else bottom, width, height), photo)
    add_image(add_axes(figure, right, bottom, width, height), overlay_map(photo, scale_to_unit(values)))
    low = -1.0 if values.min() < 0 else 0.0
    label = "importance, relative to the maximum" if low == 0 else "importance; negative values are against the class"
    add_colorbar(add_axes(figure, right, 0.62, width, 0.12), low, 1.0, label)
    return figure


def show_photo(axes: Axes, photo: Photo) -> None:
    """The image, with a frame around the crop."""
    height, width = photo.image.shape[:2]
    whole = min(photo.height, photo.width) > 0.995
    label = "the model is given the whole image" if whole else "framed: what the model is given"
    add_image(axes, photo.image, label, smoothing(width))
    axes.images[0].set_extent((0, width, height, 0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    corner, size = (photo.left * width, photo.top * height), (photo.width * width, photo.height * height)
    for thick, color in () if whole else ((3.4, "#ffffff"), (1.4, INK)):
        axes.add_patch(Rectangle(corner, *size, fill=False, linewidth=thick, edgecolor=color))


def smoothing(side: int) -> str:
    return "nearest" if side < 100 else "antialiased"


def attention_figure(explanation: Explanation) -> Figure:
    """Attention in every layer, a row, and every head, a column."""
    layers = [layer for layer in explanation.layers if layer.attention.size]
    heads = max(len(layer.attention) for layer in layers)
    tile = min(1.0, 12 / heads)
    tall = tile * explanation.cells.rows / explanation.cells.columns
    token = "the class token" if explanation.layout.cls else "the patches, averaged"
    subtitle = f"{explanation.photo.name}, {explanation.model_name}: attention of {token}; each scaled to its maximum"
    width = max(heads * tile + 1.2, MIN_WIDTH)
    figure = new_figure(width, len(layers) * tall + 0.6, "Attention of every head", subtitle)
    for row, layer in enumerate(layers):
        bottom = 0.25 + (len(layers) - 1 - row) * tall
        for head, values in enumerate(summary_attention(layer, explanation)):
            axes = add_axes(figure, 0.9 + head * tile, bottom, tile * 0.94, tall * 0.94)
            add_image(axes, scale_to_unit(values))
            if not row:
                axes.set_title(f"head {head + 1}", size=8, color=SOFT, pad=3)
            if not head:
                axes.set_ylabel(f"layer {layer.layer}", size=8, color=SOFT, rotation=0, ha="right", va="center")
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
    name = f"{explanation.photo.name}, {explanation.model_name}"
    subtitle = f"{name}: the first three principal components of the patch tokens"
    figure = new_figure(2 * SIDE + 0.9, height + 0.55, "Features in color", subtitle)
    left, right = (add_axes(figure, 0.3 + shift, 0.4, SIDE, height) for shift in (0.0, SIDE + 0.3))
    add_image(left, np.asarray(crop), "what the model is given", smoothing(crop.width))
    add_image(right, explanation.feature_colors.clip(0, 1), "similar colors, similar features", "nearest")
    return figure


def filters_figure(view: ModelView, title: str) -> Figure:
    """The principal components of the filters of the first layer (Fig. 7, left)."""
    tiles, columns = filter_pictures(view.filters), 7
    rows = -(-len(tiles) // columns)
    share = f"{view.explained_variance.sum():.0%}"
    subtitle = f"{title}: the first {len(tiles)} principal components, {share} of the variance"
    figure = new_figure(columns * 1.05 + 0.6, rows * 1.2 + 0.3, "Filters of the first layer", subtitle)
    for number, (pixels, ratio) in enumerate(zip(tiles, view.explained_variance, strict=True)):
        row, column = divmod(number, columns)
        axes = add_axes(figure, 0.3 + column * 1.05, 0.3 + (rows - 1 - row) * 1.2, 0.95, 0.95)
        add_image(axes, pixels, interpolation="nearest")
        axes.set_xlabel(f"{number + 1}: {ratio:.1%}", color=SOFT, size=7.5, labelpad=2)
    return figure


def positions_figure(view: ModelView, title: str) -> Figure:
    """Cosine similarity of position embeddings as a grid of grids (Fig. 7, center)."""
    mosaic = position_mosaic(view.positions)
    rows, columns = view.positions.shape[:2]
    tall = 6.0 * mosaic.picture.shape[0] / mosaic.picture.shape[1]
    some = "" if mosaic.tiles == (rows, columns) else f", {mosaic.tiles} of the {rows}x{columns}"
    subtitle = f"{title}: one tile per position{some}, compared with all others"
    figure = new_figure(7.0, tall + 1.2, "Position embedding similarity", subtitle)
    axes = add_axes(figure, 0.6, 1.0, 6.0, tall)
    add_image(axes, mosaic.picture, "column of the patch", "nearest")
    axes.set_ylabel("row of the patch", color=SOFT, size=9)
    add_colorbar(add_axes(figure, 0.6, 0.5, 6.0, 0.12), -1.0, 1.0, "cosine similarity")
    return figure
