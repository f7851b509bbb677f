"""Draw accuracy against images a second, as in docs/speed.md.

Run `python -m tools.draw_deploy merging.json OUT.png`, with what `python -m benchmarks.token_merging` wrote.
"""

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.token_merging import Curves, Point, Precision

COLORS: dict[Precision, str] = {"float32": "#1f6f8b", "int8": "#d1495b"}
INK, FAINT = "#222222", "#999999"
HALF = 0.5  # points of accuracy that may be lost
SPAN = 4.0  # points from top to bottom at the least, lest chance look like a trend


def draw(curves: Curves, out: Path) -> None:
    """Both curves, each point with what its layers merge."""
    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    first = curves.points[0]
    bound = 100 * first.top1 - HALF
    axes.axhline(bound, color=FAINT, linewidth=0.8, linestyle="--")
    axes.annotate("half a point lost", (0, bound), (4, -10), textcoords="offset points", fontsize=8, color=FAINT)
    for precision, color in COLORS.items():
        line(axes, [point for point in curves.points if point.precision == precision], precision, color)
    axes.set_xlabel(f"images a second ({curves.engine}, batch {curves.batch})")
    axes.set_ylabel(f"top-1 of {curves.images:,} images, %")
    axes.set_title("patches merged in every layer, beside each point", loc="left", fontsize=10, color=INK)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_xlim(left=0)
    top = 100 * max(point.top1 for point in curves.points) + HALF
    axes.set_ylim(min(axes.get_ylim()[0], top - SPAN), top)
    axes.legend(frameon=False, loc="lower left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(out)


def line(axes: Axes, points: list[Point], name: str, color: str) -> None:
    """One curve: lines between points, and the middle half of the rounds as a bar through each."""
    rates, shares = [point.rate for point in points], [100 * point.top1 for point in points]
    spread = [[point.rate - point.low for point in points], [point.high - point.rate for point in points]]
    axes.errorbar(rates, shares, xerr=spread, color=color, marker="o", markersize=4, linewidth=1.4, label=name)
    for point in points:
        place = (point.rate, 100 * point.top1)
        axes.annotate(str(point.per_layer), place, (3, 5), textcoords="offset points", fontsize=8, color=color)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tools.draw_deploy merging.json OUT.png")
    mpl.rcParams["font.family"] = "DejaVu Sans"
    draw(Curves.from_json(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
