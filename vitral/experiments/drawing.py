"""The figures of experiments: bars with the spread over seeds, and lines over a quantity, the paper's values beside."""

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitral.explanation.figures import HUES, INK, MARKERS, SOFT, add_axes, new_figure, plain_text, style_plot

if TYPE_CHECKING:
    from vitral.experiments.experiment import Experiment
    from vitral.experiments.results import ExperimentResult

Draw = Callable[["ExperimentResult"], Figure]
ROW = 0.34  # inches of a bar


def draw_result(experiment: "Experiment", result: "ExperimentResult") -> Figure:
    """The figure of an experiment."""
    return (experiment.figure or bars)(result)


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG, without the version of the program that drew it."""
    stream = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(stream, format="png", facecolor=figure.get_facecolor(), metadata={"Software": None})
    return stream.getvalue()


def bars(result: "ExperimentResult") -> Figure:
    """A row for each arm: a dot for each seed and a line at their mean, or a bar; the paper's value as a diamond."""
    arms = [arm for arm in reversed(result.arms) if arm.mean is not None]
    height = max(1.6, ROW * len(arms))
    figure = new_figure(7.6, height + 0.9, result.title, subtitle(result))
    axes = add_axes(figure, 2.4, 0.85, 4.8, height)
    scale, rows = (100 if result.share else 1), range(len(arms))
    means = [scale * (arm.mean or 0.0) for arm in arms]
    if not result.computed:
        axes.plot(means, rows, "|", color=HUES[0], markersize=15, markeredgewidth=2.5, label="mean over seeds")
        dots = [(scale * value, row) for row, arm in enumerate(arms) for value in arm.values]
        axes.plot(*zip(*dots, strict=True), "o", color=HUES[5], markersize=5, label="a seed")
    else:
        axes.barh(rows, means, color=HUES[5], height=0.62, label="Vitral")
    papers = [(scale * arm.paper, row) for row, arm in enumerate(arms) if arm.paper is not None]
    if papers and not result.paper_name:
        axes.plot(*zip(*papers, strict=True), "D", color=HUES[1], markersize=5, label="the paper")
    axes.set_yticks(rows, [plain_text(arm.arm) for arm in arms])
    style_plot(axes, value_label(result), "")
    axes.tick_params(axis="y", labelcolor=INK)
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, labelcolor=SOFT)
    axes.set_ylim(-0.6, len(arms) - 0.4)
    return figure


def lines(x_label: str, log: bool = True, of: str = "x") -> Draw:
    """A line for each group of arms, over their `x` or another number: the mean, and bars of one standard deviation."""

    def draw(result: "ExperimentResult") -> Figure:
        figure, axes = plot_area(result)
        for style, group in enumerate(dict.fromkeys(arm.group for arm in result.arms)):
            arms = [arm for arm in result.arms if arm.group == group and arm.mean is not None]
            points = [(getattr(arm, of), arm.mean or 0.0, arm.spread or 0.0) for arm in arms]
            plot_points(axes, [point for point in points if point[0] is not None], style, group, result.share)
        if log:
            axes.set_xscale("log")
        style_plot(axes, x_label, value_label(result))
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
        return figure

    return draw


def over_rates(result: "ExperimentResult") -> Figure:
    """The sweep of every arm on the held-out images, and beside it the test accuracy with the rate that was chosen."""
    figure, axes = plot_area(result)
    for style, arm in enumerate(result.arms):
        tried = [
            (each.rate, each.value, 0.0) for each in result.rates if each.arm == arm.arm and each.value is not None
        ]
        plot_points(axes, tried, style, f"{arm.arm}, held-out images", result.share)
        color, scale = HUES[style % len(HUES)], 100 if result.share else 1
        seeds = [scale * value for value in arm.values]
        label = f"{arm.arm}, test images, by seed"
        axes.plot([arm.rate] * len(seeds), seeds, "x", color=color, markersize=7, label=label)
    axes.set_xscale("log")
    style_plot(axes, "learning rate", value_label(result))
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return figure


def plot_area(result: "ExperimentResult") -> tuple[Figure, Axes]:
    """A figure with one plot."""
    figure = new_figure(7.6, 4.6, result.title, subtitle(result))
    return figure, add_axes(figure, 0.9, 0.7, 6.4, 3.7)


def plot_points(axes: Axes, points: Sequence[tuple[float, float, float]], style: int, name: str, share: bool) -> None:
    """A line through points of x, y and the standard deviation of y."""
    scale, color = (100 if share else 1), HUES[style % len(HUES)]
    x, y, spread = ([point[part] for point in points] for part in range(3))
    axes.errorbar(
        x,
        [scale * value for value in y],
        [scale * value for value in spread],
        color=color,
        marker=MARKERS[style % len(MARKERS)],
        markersize=5,
        linewidth=1.6,
        capsize=3,
        label=name,
    )


def subtitle(result: "ExperimentResult") -> str:
    """Where and how it was run, and the verdict."""
    where = f"scale {result.scale} on {result.data}" if result.data else ""
    verdict = "" if result.verdict == "none" else result.verdict
    return ", ".join(filter(None, [where, verdict]))


def value_label(result: "ExperimentResult") -> str:
    """The name of the vertical axis."""
    return f"{result.metric_name} in percent" if result.share else result.metric_name
