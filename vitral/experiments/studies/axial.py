"""D.6: axial attention against full attention and attention within windows."""

from collections.abc import Sequence

from vitral.experiments.checks import better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Experiment, Scale

DEPTH: dict[Scale, int] = {"tiny": 4, "small": 6, "full": 12}
WINDOW: dict[Scale, int] = {"tiny": 2, "small": 4, "full": 7}


def arms(scale: Scale) -> Sequence[Arm]:
    """A block of axial attention is a layer over rows and one over columns, so it has twice the layers."""
    side = WINDOW[scale]
    local = {"model.mixer": "local", "model.mixer.rows": side, "model.mixer.columns": side}
    return [
        Arm("full attention", group="full attention"),
        Arm("axial attention", {"model.mixer": "axial", "model.depth": 2 * DEPTH[scale]}, group="axial attention"),
        Arm("attention in windows", local, group="attention in windows"),
    ]


EXPERIMENT = Experiment(
    title="D.6: axial attention",
    claim="Axial-ViT is more accurate than ViT of the same width, and costs more compute",
    arms=arms,
    checks=[better("axial attention", "full attention")],
    budget="images",
    unequal="an axial block has two MLPs; all see as many images",
    differs={
        "tiny": "a small model, trained with labels; test accuracy in place of 5 shots of ImageNet",
        "small": "a small model, trained with labels; test accuracy in place of 5 shots of ImageNet",
    },
    figure=lines("FLOPs of training", of="flops"),
)
