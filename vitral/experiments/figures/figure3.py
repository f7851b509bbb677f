"""Figure 3: ViT, hybrid and ResNet as the training set grows."""

from collections.abc import Iterator, Mapping, Sequence

from vitral.experiments.checks import Check, better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.scales import HELD_OUT, hybrid, resnet
from vitral.recipes.paper import finetune_imagenet, paper_imagenet, paper_imagenet21k, paper_jft
from vitral.recipes.recipe import DataConfig, Recipe

SHARES = (0.1, 0.3, 1.0)
SETS = {"imagenet": paper_imagenet, "imagenet21k": paper_imagenet21k, "jft": paper_jft}
SIZES = {"imagenet": 1.3e6, "imagenet21k": 14e6, "jft": 303e6}
GRID = (0.003, 0.01, 0.03, 0.06)  # Table 4
TABLE5 = {  # ImageNet after pre-training on each set
    "B/16": (0.7791, 0.8397, 0.8415), "B/32": (0.7338, 0.8128, 0.8073), "L/16": (0.7653, 0.8515, 0.8712),
    "L/32": (0.7116, 0.8099, 0.8437), "H/14": (None, 0.8513, 0.8804), "R50x1": (None,) * 3, "R152x2": (None,) * 3,
}  # fmt: skip


def arms(scale: Scale) -> Sequence[Arm]:
    """Families by training set: parts of one at tiny and small, three sets and fine-tuning at full."""
    return list(original() if scale == "full" else subsets(scale))


def subsets(scale: Scale) -> Iterator[Arm]:
    """Nested parts of the training images, each for as many steps as the whole."""
    for family, settings in families(scale).items():
        for share in SHARES:
            name, x = f"{family}, {share:.0%}", 100 * share * (1 - HELD_OUT)
            yield Arm(name, {**settings, "data.fraction": share}, group=family, x=x)


def families(scale: Scale) -> Mapping[str, Mapping[str, object]]:
    """The settings of the three families of models."""
    return {"ViT": {}, "hybrid": {"model.stem": hybrid(scale)}, "ResNet": {"model": resnet(scale)}}


def original() -> Iterator[Arm]:
    """Table 3, then Table 4 on ImageNet."""
    for model, values in TABLE5.items():
        for (name, recipe), paper in zip(SETS.items(), values, strict=True):
            before, after = of(recipe(model), name), of(finetune_imagenet(model), "imagenet")
            yield Arm(f"{model} on {name}", recipe=before, compared=False)
            yield Arm(
                f"{model}, {name}", recipe=after, start=f"{model} on {name}", rates=GRID, paper=paper, group=model,
                x=SIZES[name],
            )  # fmt: skip


def of(recipe: Recipe, data: str) -> Recipe:
    """The recipe for a set of the paper."""
    return recipe.model_copy(update={"data": DataConfig(path=data, split=recipe.data.split)})


EXPERIMENT = Experiment(
    title="Figure 3: how much data ViT needs",
    claim="with little data ResNets are better than ViT, and ViT catches up as the data grows",
    arms=arms,
    checks=[
        better("ResNet, 10%", "ViT, 10%"),
        Check(
            "the lead of the ResNet shrinks from 10% to all of the data",
            {"ResNet, 10%": 1.0, "ViT, 10%": -1.0, "ResNet, 100%": -1.0, "ViT, 100%": 1.0},
        ),
        better("R50x1, imagenet", "L/32, imagenet"),
        better("L/16, jft", "R152x2, jft"),
    ],
    differs={
        "tiny": "small models trained on parts of one small set, and tested on it without fine-tuning",
        "small": "small models trained on parts of one small set, and tested on it without fine-tuning",
    },
    figure=lines("training images in percent; at full, images"),
)
