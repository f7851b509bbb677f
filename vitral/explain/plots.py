"""Figures of numbers: attention distance, what is read at each depth, the test of the maps.

L layers, H heads, K classes, P points of a curve.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitral.explain.canvas import HUES, INK, LINE, MARKERS, SOFT, chart, place, plain, sheet
from vitral.explain.explanation import Array, Explanation, ModelView

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
    """A line that differs from the others in colour and in its markers."""
    colour, marker = HUES[style % len(HUES)], MARKERS[style % len(MARKERS)]
    axes.plot(across, values, color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=plain(name))


def short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
