"""Figure 4: the same models by linear few-shot evaluation, which is cheaper than fine-tuning."""

from collections.abc import Iterator, Sequence

from vitral.experiments.checks import Check, better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import of, subsets
from vitral.experiments.measures import few_shot
from vitral.recipes.paper import paper_jft
from vitral.recipes.recipe import Steps

MODELS = ("L/16", "L/32", "B/32", "b/32", "R50x1", "R152x2")
SUBSETS = {9e6: 0.03, 30e6: 0.1, 90e6: 0.3, 300e6: 1.0}  # images, and the part of JFT-300M
STEPS = 517_823  # 7 epochs of all of it


def arms(scale: Scale) -> Sequence[Arm]:
    """Families by part of the training set."""
    return list(original() if scale == "full" else subsets(scale))


def original() -> Iterator[Arm]:
    """Random subsets of JFT-300M, without more regularization."""
    for model in MODELS:
        for images, share in SUBSETS.items():
            recipe = of(paper_jft(model), "jft").model_copy(update={"length": Steps(steps=STEPS)})
            yield Arm(f"{model}, {images:.0e}", {"data.fraction": share}, recipe=recipe, group=model, x=images)


EXPERIMENT = Experiment(
    title="Figure 4: linear 5-shot accuracy by the size of the training set",
    claim="ResNets are better with small training sets and level off sooner than ViT",
    arms=arms,
    checks=[
        better("ResNet, 10%", "ViT, 10%"),
        Check(
            "the lead of the ResNet shrinks from 10% to all of the data",
            {"ResNet, 10%": 1.0, "ViT, 10%": -1.0, "ResNet, 100%": -1.0, "ViT, 100%": 1.0},
        ),
        better("R50x1, 9e+06", "B/32, 9e+06"),
        better("L/16, 3e+08", "R152x2, 3e+08"),
    ],
    measure=few_shot(5),
    metric="few_shot",
    metric_name="linear 5-shot accuracy",
    differs={
        "tiny": "5 shots of the classes that the models were trained on, in place of ImageNet after JFT-300M",
        "small": "5 shots of the classes that the models were trained on, in place of ImageNet after JFT-300M",
    },
    figure=lines("training images in percent; at full, images"),
)
