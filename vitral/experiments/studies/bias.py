"""Inductive bias: what a shift of the image does to the features, and how far layers look."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from vitral.experiments.checks import Check, better
from vitral.experiments.drawing import subtitle
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import families
from vitral.experiments.inspection import mean_over_seeds, shifted
from vitral.experiments.measures import accuracy, together
from vitral.explanation.figures import HUES, INK, MARKERS, add_axes, new_figure, style_plot

if TYPE_CHECKING:
    from vitral.experiments.results import ExperimentResult

SHIFT: dict[Scale, float] = {"tiny": 8, "small": 16, "full": 32}  # pixels: whole cells of all three
LINES = {"trained": "-", "random": ":"}
PANELS = (
    ("shift", 0, "shift in pixels", "relative change of pooled features"),
    ("depth", 1, "layer or unit", "pixels"),
)


def arms(scale: Scale) -> Sequence[Arm]:
    """Three families with equal compute."""
    return [Arm(name, settings, group=name, x=SHIFT[scale]) for name, settings in families(scale).items()]


def draw(result: "ExperimentResult") -> Figure:
    """Left the change of features by shift; right attention distance and receptive field by depth."""
    figure = new_figure(10.4, 4.3, result.title, subtitle(result))
    for left, (kind, first, x_label, y_label) in zip((0.8, 6.0), PANELS, strict=True):
        axes = add_axes(figure, left, 0.7, 4.1, 3.4)
        for style, arm in enumerate(result.arms):
            for name, line in LINES.items():
                found = result.arrays_of(arm.arm, f"{kind}, {name}")
                if not found or (kind == "depth" and name == "random" and arm.arm == "ResNet"):
                    continue  # a receptive field is of the model, not of its weights
                y = mean_over_seeds(found)
                what = {"ResNet": "receptive field"}.get(arm.arm, "attention distance") if kind == "depth" else ""
                label = ", ".join(filter(None, [arm.arm, name if what != "receptive field" else "", what]))
                marker = MARKERS[style] if name == "trained" else ""
                axes.plot(
                    range(first, first + len(y)), y, line, color=HUES[style], marker=marker, markersize=5, label=label
                )
        style_plot(axes, x_label, y_label)
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


EXPERIMENT = Experiment(
    title="Inductive bias: locality and translation equivariance",
    claim="convolutions are local and translation equivariant by design; ViT has to learn it",
    arms=arms,
    checks=[
        better("ViT", "ResNet", "features of ViT follow a shift less than those of the ResNet"),
        Check("training makes ViT more equivariant than random weights", {"ViT": 1.0}, metric="learnt"),
        better("ViT", "ResNet", "a shift by 4 pixels changes more answers of ViT", metric="changed"),
    ],
    measure=together(accuracy, shifted),
    metric="equivariance, trained",
    metric_name="equivariance error",
    share=False,
    columns={
        "equivariance, random": "random weights",
        "changed": "answers changed by 4 px",
        "accuracy": "test accuracy",
    },
    differs={
        "tiny": "the paper argues this and does not measure it; small models, trained without shifted images",
        "small": "the paper argues this and does not measure it; small models, trained with shifts by 2 pixels",
    },
    figure=draw,
)
