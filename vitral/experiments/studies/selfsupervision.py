"""Section 4.6: masked patch prediction against training from scratch and supervised pre-training."""

from collections.abc import Sequence

from vitral.experiments.checks import better, same
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import of
from vitral.recipes.paper import finetune_imagenet, paper_imagenet, paper_masked

TARGETS = {"mean color": "mean_color", "4 x 4 colors": "downsized", "pixels": "whole_patch"}
LABELED = 0.1  # of the training images, at tiny and small
LENGTH = 0.25  # of fine-tuning, by that of pre-training
GRID = (0.003, 0.01, 0.03, 0.06)  # Table 4
PAPER = {"from scratch": 0.779, "mean color": 0.799, "supervised": 0.8397}  # B/16 on ImageNet; supervised on 21k


def arms(scale: Scale) -> Sequence[Arm]:
    """What is pre-trained with all images, and fine-tuning with a tenth of the labels."""
    full, few = scale == "full", {} if scale == "full" else {"data.fraction": LABELED}
    masked = of(paper_masked("B/16"), "jft") if full else None
    start = {name: {"task": "masked_patches", "task.target": kind} for name, kind in TARGETS.items()}
    before = [Arm(f"{name}, start", each, recipe=masked, compared=False) for name, each in start.items()]
    before.append(Arm("supervised, start", recipe=of(paper_imagenet(), "imagenet") if full else None, compared=False))
    recipe, rates = (of(finetune_imagenet("B/16"), "imagenet"), GRID) if full else (None, ())
    after = [
        Arm(name, few, recipe=recipe, rates=rates, start=f"{name}, start", budget=LENGTH, paper=PAPER.get(name))
        for name in [*TARGETS, "supervised"]
    ]
    scratch_recipe = of(paper_imagenet(), "imagenet") if full else None
    scratch_rates = (1e-3, 3e-3, 1e-2, 3e-2) if full else ()
    name = "from scratch"
    scratch = Arm(name, few, recipe=scratch_recipe, rates=scratch_rates, budget=1 + LENGTH, paper=PAPER[name])
    return [*before, scratch, *after]


EXPERIMENT = Experiment(
    title="Section 4.6: masked patch prediction",
    claim="self-supervised pre-training is better than none, and worse than supervised pre-training",
    arms=arms,
    checks=[
        better("mean color", "from scratch"),
        better("supervised", "mean color"),
        same("mean color", "4 x 4 colors", within=0.02),
        better("mean color", "pixels", "predicting colors is better than predicting pixels"),
    ],
    paper_name="paper, B/16",
    differs={
        "tiny": "a small model; all images for pre-training, a tenth of their labels for fine-tuning",
        "small": "a small model; all images for pre-training, a tenth of their labels for fine-tuning",
    },
)
