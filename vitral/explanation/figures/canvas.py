"""What all figures share: size, colors, titles, PNG output. Uses no global state of matplotlib."""

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from PIL import Image

from vitral.core.errors import VitralError
from vitral.data.decoding.pixels import Pixels
from vitral.explanation.explanation import Array, Photo
from vitral.explanation.page.pictures import heat_colors
from vitral.html.page import printable

BACKGROUND, INK, SOFT, LINE = "#ffffff", "#1d2126", "#626a73", "#dedbd3"
# Okabe and Ito's colors, safe for color-blind readers, ordered so that neighbors differ in lightness.
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1d2126")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 144
HEAD = 0.85  # inches for title and subtitle
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
        try:
            Path(path).expanduser().write_bytes(self.png())
        except OSError as error:
            message = f"cannot be written: {(error.strerror or str(error)).lower()}"
            hint = "make room, or name another folder"
            raise VitralError(message, code="file.write_failed", where=path, hint=hint) from None

    def _repr_png_(self) -> bytes:
        """The figure, for a notebook."""
        return self.png()


def new_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """An empty figure of so many inches below its title and subtitle, to be filled by `add_axes`."""
    figure = Figure(figsize=(width, height + HEAD), dpi=DPI, facecolor=BACKGROUND)
    top = height + HEAD
    figure.text(0.3 / width, 1 - 0.3 / top, plain_text(title, width), size=14, weight="bold", color=INK, va="center")
    figure.text(0.3 / width, 1 - 0.58 / top, plain_text(subtitle, 1.65 * width), size=9, color=SOFT, va="center")
    return figure


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a position in inches from the lower left corner."""
    whole_width, whole_height = figure.get_size_inches()
    box = (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(box)


def plain_text(text: str, inches: float = 100.0) -> str:
    """Text without math markup or control codes, shortened to fit so many inches of a title."""
    most = max(8, int(inches * 8.2))
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return printable(short).replace("$", r"\$")


def style_image(axes: Axes) -> None:
    """Style axes for an image: no ticks, a thin frame."""
    axes.set_xticks([])
    axes.set_yticks([])
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


def add_colorbar(figure: Figure, axes: Axes, low: float, high: float, label: str) -> None:
    """A color bar of the heat colors, from low to high."""
    colors = SIGNED_MAP if low < 0 else POSITIVE_MAP
    bar = figure.colorbar(ScalarMappable(Normalize(low, high), colors), cax=axes, orientation="horizontal")
    bar.set_label(label, color=SOFT, size=9)
    axes.tick_params(colors=SOFT, labelsize=8, length=2)
    bar.outline.set(edgecolor=LINE)


def overlay_map(photo: Photo, values: Array) -> Pixels:
    """The image in gray with a map (R, S) of -1 to 1 over the crop; the rest is pale."""
    height, width = photo.image.shape[:2]
    times = max(1, round(640 / max(height, width)))
    gray = np.asarray(Image.fromarray(photo.image).convert("L").resize((width * times, height * times)))
    base = np.repeat(gray[..., None], 3, axis=2).astype(np.float32)  # (h, w, 3)
    height, width = base.shape[:2]
    top, left = round(photo.top * height), round(photo.left * width)
    bottom, right = round((photo.top + photo.height) * height), round((photo.left + photo.width) * width)
    shown = 255 - (255 - base) * 0.45  # outside the crop
    size = (right - left, bottom - top)
    smooth = np.asarray(Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))
    share = (0.25 + 0.65 * np.abs(smooth.clip(-1, 1)) ** 0.8)[..., None]
    shown[top:bottom, left:right] = base[top:bottom, left:right] * 0.8 * (1 - share) + heat_colors(smooth) * share
    return shown.round().astype(np.uint8)
