"""Figure 7: filters, similarity of positions and attention distance, trained against random weights."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from vitral.experiments.checks import Check
from vitral.experiments.drawing import subtitle
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.inspection import learned
from vitral.experiments.measures import accuracy, together
from vitral.explanation.figures import HUES, INK, add_axes, add_image, new_figure, style_plot
from vitral.explanation.page.pictures import filter_pictures, position_mosaic
from vitral.recipes.paper import paper_jft

if TYPE_CHECKING:
    from vitral.experiments.results import ExperimentResult

ROWS = {"trained": "trained", "random": "random\nweights"}
COLUMNS, TILE, TALL = 7, 0.36, 2.6  # filters in a row, inches of one, inches of a row of the figure


def arms(scale: Scale) -> Sequence[Arm]:
    """One model: nothing is compared but its own weights, trained and random."""
    rates = {"tiny": (4e-3,), "small": (1e-3,), "full": (4e-4,)}[scale]
    return [Arm("ViT", recipe=paper_jft("L/16") if scale == "full" else None, rates=rates)]


def draw(result: "ExperimentResult") -> Figure:
    """Left the first 28 principal filters, in the middle similarity of positions, right attention distance."""
    figure = new_figure(10.4, 2 * TALL + 0.5, result.title, subtitle(result))
    for row, (name, label) in enumerate(ROWS.items()):
        bottom = 0.6 + (len(ROWS) - 1 - row) * TALL
        found = {kind: result.arrays_of("ViT", f"{kind}, {name}") for kind in ("filters", "positions", "distance")}
        if not all(found.values()):
            continue
        for number, pixels in enumerate(filter_pictures(found["filters"][0][..., None].astype(np.float32))):
            down, across = divmod(number, COLUMNS)
            axes = add_axes(figure, 0.9 + across * TILE, bottom + 1.5 - down * TILE, 0.92 * TILE, 0.92 * TILE)
            add_image(axes, pixels, interpolation="nearest")
        figure.text(0.03, (bottom + 1.0) / figure.get_size_inches()[1], label, size=10, color=INK)
        axes = add_axes(figure, 4.1, bottom - 0.1, 2.1, 2.1)
        add_image(
            axes,
            position_mosaic(found["positions"][0].astype(np.float32)).picture,
            "similarity of positions",
            "nearest",
        )
        distance = found["distance"][0]  # (layers, heads)
        axes = add_axes(figure, 7.0, bottom + 0.1, 3.1, 1.9)
        layers = range(1, len(distance) + 1)
        axes.plot(np.repeat(layers, distance.shape[1]), distance.ravel(), "o", color=HUES[0], alpha=0.6, label="a head")
        axes.plot(layers, distance.mean(axis=1), color=HUES[1], linewidth=2, label="mean")
        style_plot(axes, "layer", "distance, pixels")
        axes.set_ylim(0, 1.15 * max(float(each.max()) for each in found["distance"]))
    return figure


EXPERIMENT = Experiment(
    title="Figure 7: filters, positions and attention distance",
    claim="filters are those of a low-dimensional basis, near positions are similar, and attention widens with depth",
    arms=arms,
    checks=[
        Check("8 components of the filters hold more than in random weights", {"ViT": 1.0}, metric="filters, gain"),
        Check("near positions are more similar than in random weights", {"ViT": 1.0}, metric="positions, gain"),
        Check("attention is wider in the last layer than in the first", {"ViT": 1.0}, metric="growth, trained"),
    ],
    measure=together(accuracy, learned),
    metric="positions, trained",
    metric_name="similarity by nearness",
    share=False,
    columns={"positions, random": "random weights", "accuracy": "test accuracy"},
    differs={
        "tiny": "a small model; the paper shows L/32 and L/16, with heads of 10 to 110 pixels of 224 in layer 1",
        "small": "a small model; the paper shows L/32 and L/16, with heads of 10 to 110 pixels of 224 in layer 1",
    },
    figure=draw,
)
