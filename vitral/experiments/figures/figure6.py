"""Figure 6: attention from the output to the image, by rollout."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from vitral.experiments.checks import Check
from vitral.experiments.drawing import subtitle
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.inspection import attended
from vitral.experiments.measures import accuracy, together
from vitral.explanation.figures import add_axes, add_image, new_figure
from vitral.recipes.paper import paper_jft

if TYPE_CHECKING:
    from vitral.experiments.results import ExperimentResult

ROWS = {"photos": "image", "trained": "rollout, trained", "random": "rollout, random weights"}
SIDE = 1.25  # inches of an image


def arms(scale: Scale) -> Sequence[Arm]:
    """One model: nothing is compared but its own weights, trained and random."""
    rates = {"tiny": (4e-3,), "small": (1e-3,), "full": (4e-4,)}[scale]
    return [Arm("ViT", recipe=paper_jft("L/16") if scale == "full" else None, rates=rates)]


def draw(result: "ExperimentResult") -> Figure:
    """A row of images, and below each its map by the trained model and by random weights."""
    pictures = {name: result.arrays_of("ViT", name)[0] for name in ROWS if result.arrays_of("ViT", name)}
    count = len(pictures.get("photos", ()))
    figure = new_figure(1.4 + SIDE * max(4, count), 0.2 + SIDE * len(ROWS), result.title, subtitle(result))
    for row, (name, label) in enumerate(ROWS.items()):
        for column, values in enumerate(pictures.get(name, ())):
            bottom = 0.1 + SIDE * (len(ROWS) - 1 - row)
            axes = add_axes(figure, 1.2 + SIDE * column, bottom, 0.95 * SIDE, 0.95 * SIDE)
            if name == "photos":
                add_image(axes, np.repeat(values[..., None], 3, axis=2).clip(0, 255).astype(np.uint8))
            else:
                add_image(axes, values / values.max(), interpolation="bilinear")
            if not column:
                axes.set_ylabel(label.replace(", ", ",\n"), size=8, rotation=0, ha="right", va="center")
    return figure


EXPERIMENT = Experiment(
    title="Figure 6: attention from the output to the image",
    claim="the model attends to image regions that are relevant for the classification",
    arms=arms,
    checks=[
        Check("patches that rollout names decide more than random ones", {"ViT": 1.0}),
        Check("the rollout of trained weights is better than that of random weights", {"ViT": 1.0}, metric="gain"),
    ],
    measure=together(accuracy, attended),
    metric="faithfulness",
    metric_name="above random maps",
    share=False,
    columns={"untrained": "random weights", "accuracy": "test accuracy"},
    differs={
        "tiny": "a small model; the paper shows L/16. above: insertion area less deletion area",
        "small": "a small model; the paper shows L/16. above: insertion area less deletion area",
    },
    figure=draw,
)
