"""The figures of experiments: bars with the spread over seeds, and lines over a quantity, the paper's values beside."""

import warnings
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitral.explanation.figures import HUES, INK, MARKERS, SOFT, add_axes, new_figure, plain_text, style_plot

if TYPE_CHECKING:
    from vitral.experiments.experiment import Experiment
    from vitral.experiments.results import ArmResult, ExperimentResult

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
    """A row for each arm: the mean, a dot for each seed, the paper's value as a diamond."""
    arms = [arm for arm in result.arms if arm.mean is not None]
    height = max(1.6, ROW * len(arms))
    figure = new_figure(7.6, height + 0.9, result.title, subtitle(result))
    axes = add_axes(figure, 2.4, 0.85, 4.8, height)
    scale = 100 if result.share else 1
    for row, arm in enumerate(reversed(arms)):
        dots = [scale * value for value in arm.values]
        axes.barh(row, scale * (arm.mean or 0.0), color=HUES[5], alpha=0.55, height=0.62)
        axes.plot(dots, [row] * len(dots), "o", color=HUES[0], markersize=4, label="a seed" if row == 0 else None)
        if arm.paper is not None and not result.paper_name:
            label = "the paper" if row == 0 else None
            axes.plot([scale * arm.paper], [row], "D", color=HUES[1], markersize=5, label=label)
    axes.set_yticks(range(len(arms)), [plain_text(arm.arm) for arm in reversed(arms)])
    style_plot(axes, value_label(result), "")
    if result.share and arms:
        values = [scale * value for arm in arms for value in arm.values]
        values += [scale * arm.paper for arm in arms if arm.paper is not None and not result.paper_name]
        low, high = min(values), max(values)
        axes.set_xlim(max(0.0, low - max(1.0, high - low)), min(100.0, high + max(1.0, (high - low) / 4)))
    axes.tick_params(axis="y", labelcolor=INK)
    if result.trained:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(-0.5, -0.12), labelcolor=SOFT)
    return figure


def lines(x_label: str, log: bool = True) -> Draw:
    """A line for each group of arms, over their `x`: the mean, and bars of one standard deviation."""

    def draw(result: "ExperimentResult") -> Figure:
        figure = new_figure(7.6, 4.6, result.title, subtitle(result))
        axes = add_axes(figure, 0.9, 0.7, 6.4, 3.7)
        groups = dict.fromkeys(arm.group for arm in result.arms)
        for style, group in enumerate(groups):
            arms = [arm for arm in result.arms if arm.group == group and arm.mean is not None]
            plot_group(axes, [arm for arm in arms if arm.x is not None], style, group, result.share)
        if log:
            axes.set_xscale("log")
        style_plot(axes, x_label, value_label(result))
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
        return figure

    return draw


def plot_group(axes: Axes, arms: "list[ArmResult]", style: int, name: str, share: bool) -> None:
    """The line of a group."""
    scale, color = (100 if share else 1), HUES[style % len(HUES)]
    x = [arm.x or 0.0 for arm in arms]
    y, error = [scale * (arm.mean or 0.0) for arm in arms], [scale * (arm.spread or 0.0) for arm in arms]
    marker = MARKERS[style % len(MARKERS)]
    axes.errorbar(
        x, y, error, color=color, marker=marker, markersize=5, linewidth=1.6, capsize=3, ecolor=color, label=name
    )


def subtitle(result: "ExperimentResult") -> str:
    """Where and how it was run, and the verdict."""
    where = f"scale {result.scale} on {result.data}" if result.data else ""
    verdict = "" if result.verdict == "none" else result.verdict
    return ", ".join(filter(None, [where, verdict]))


def value_label(result: "ExperimentResult") -> str:
    """The name of the vertical axis."""
    return f"{result.metric_name} in percent" if result.share else result.metric_name
