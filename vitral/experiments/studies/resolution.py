"""Resolution: fine-tuning with larger images than in pre-training, and stretching positions without fine-tuning."""

from collections.abc import Sequence

from vitral.experiments.checks import Check, better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import of
from vitral.experiments.measures import accuracy, stretching, together
from vitral.recipes.paper import finetune_imagenet, paper_imagenet21k

PATCH: dict[Scale, int] = {"tiny": 4, "small": 4, "full": 16}
BEFORE: dict[Scale, int] = {"tiny": 16, "small": 16, "full": 224}  # pixels of pre-training
AFTER: dict[Scale, tuple[int, ...]] = {"tiny": (16, 24, 32), "small": (16, 24, 32, 48), "full": (224, 320, 384)}
LENGTH = 0.25  # of fine-tuning, by that of pre-training


def arms(scale: Scale) -> Sequence[Arm]:
    """One pre-training, and fine-tuning at several sizes."""
    full, patch = scale == "full", {"model.stem.patch": PATCH[scale]}
    before = of(paper_imagenet21k("B/16"), "imagenet21k") if full else None
    after = of(finetune_imagenet("B/16"), "imagenet") if full else None
    rates = (0.003, 0.01, 0.03, 0.06) if full else (5e-4, 2e-3)
    start = Arm("start", patch | {"model.image_size": BEFORE[scale]}, recipe=before, compared=False, rates=rates[1:])
    sizes = [
        Arm(
            f"{size} px", patch | {"model.image_size": size}, recipe=after, start="start", rates=rates,
            budget=LENGTH, group="fine-tuned", x=float(size),
        )
        for size in AFTER[scale]
    ]  # fmt: skip
    return [start, *sizes]


EXPERIMENT = Experiment(
    title="Image size of fine-tuning",
    claim="fine-tuning with larger images than in pre-training helps, and stretching positions alone does not",
    arms=arms,
    checks=[
        better("24 px", "16 px"),
        better("32 px", "16 px"),
        better("384 px", "224 px"),
        Check("twice the size without fine-tuning loses accuracy", {"16 px": 1.0}, metric="loss_at_twice"),
        Check("twice the size without fine-tuning loses accuracy", {"224 px": 1.0}, metric="loss_at_twice"),
    ],
    measure=together(accuracy, stretching),
    budget="images",
    unequal="larger images have more patches; all see as many images",
    differs={
        "tiny": "pre-training with labels of the same images, at 16 pixels, which are 28 pixels wide",
        "small": "pre-training with labels of the same images, at 16 pixels",
    },
    figure=lines("image size in pixels", log=False),
)
