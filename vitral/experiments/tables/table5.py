"""Table 5: pre-training sets by models by targets."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from vitral.experiments.checks import Check, better
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import GRID, of
from vitral.recipes import paper as recipes

SETS = {"imagenet": recipes.paper_imagenet, "imagenet21k": recipes.paper_imagenet21k, "jft": recipes.paper_jft}
RATES = (0.001, 0.003, 0.01, 0.03)
CIFAR, IMAGENET = (recipes.finetune_cifar, RATES), (recipes.finetune_imagenet, GRID)
OXFORD = dict.fromkeys(("oxford-flowers", "oxford-pets"), (recipes.finetune_flowers, RATES))
FINETUNE = {"cifar10": CIFAR, "cifar100": CIFAR, "imagenet": IMAGENET} | OXFORD
# Pre-training set, model, and percent on the targets in their order; ReaL is ImageNet with other labels.
PAPER = """
imagenet    B/16 98.13 87.13 77.91 89.49 93.81
imagenet    B/32 97.77 86.31 73.38 85.43 92.04
imagenet    L/16 97.86 86.35 76.53 89.66 93.64
imagenet    L/32 97.94 87.07 71.16 86.36 91.35
imagenet21k B/16 98.95 91.67 83.97 99.38 94.43
imagenet21k B/32 98.79 91.97 81.28 99.11 93.02
imagenet21k L/16 99.16 93.44 85.15 99.61 94.73
imagenet21k L/32 99.13 93.04 80.99 99.19 93.09
imagenet21k H/14 99.27 93.82 85.13 99.51 94.82
jft         B/16 99.00 91.87 84.15 99.56 95.80
jft         B/32 98.61 90.49 80.73 99.27 93.40
jft         L/16 99.38 94.04 87.12 99.56 97.11
jft         L/32 99.19 92.52 84.37 99.45 95.83
jft         H/14 99.50 94.55 88.04 99.68 97.56
"""
SMALL = {"orientation": "shapes-orientation", "location": "shapes-location"}  # targets
LENGTH = 0.5  # of fine-tuning, by that of pre-training
DEPTHS = {"tiny": {"2 layers": 2, "4 layers": 4}, "small": {"6 layers": 6, "12 layers": 12}}
PARTS = {"10%": 0.1, "100%": 1.0}


def arms(scale: Scale) -> Sequence[Arm]:
    """At tiny and small two models by two parts of a set, fine-tuned on generated images; at full Tables 3 and 4."""
    return list(original() if scale == "full" else transfers(DEPTHS[scale]))


def transfers(depths: Mapping[str, int]) -> Iterator[Arm]:
    """Every model on every part, then on every target."""
    for (model, depth), (part, share) in product(depths.items(), PARTS.items()):
        start, size = f"{model}, {part}", {"model.depth": depth}
        yield Arm(start, size | {"data.fraction": share}, compared=False)
        for target, data in SMALL.items():
            yield Arm(f"{start}, {target}", size | {"data.path": data}, start=start, budget=LENGTH)


def original() -> Iterator[Arm]:
    """Every model on every set, then on every target."""
    for name, model, *values in (line.split() for line in PAPER.strip().splitlines()):
        start = f"{model} on {name}"
        yield Arm(start, recipe=of(SETS[name](model), name), compared=False)
        for (target, (recipe, rates)), value in zip(FINETUNE.items(), values, strict=True):
            after, paper = of(recipe(model), target), float(value) / 100
            yield Arm(f"{start}, {target}", recipe=after, start=start, rates=rates, paper=paper)


def checks(small: str, large: str) -> Iterator[Check]:
    yield from (better(f"{large}, 100%, {target}", f"{large}, 10%, {target}") for target in SMALL)
    signs = {f"{large}, 100%": 0.5, f"{large}, 10%": -0.5, f"{small}, 100%": -0.5, f"{small}, 10%": 0.5}
    weights = {f"{arm}, {target}": sign for arm, sign in signs.items() for target in SMALL}
    yield Check(f"more data helps {large} more than {small}", weights)


EXPERIMENT = Experiment(
    title="Table 5: transfer by pre-training set and model",
    claim="a larger pre-training set is better, and larger models need it",
    arms=arms,
    checks=[
        *(each for depths in DEPTHS.values() for each in checks(*depths)),
        better("L/16 on jft, imagenet", "L/16 on imagenet, imagenet"),
        better("L/16 on jft, imagenet", "B/16 on jft, imagenet"),
    ],
    differs=dict.fromkeys(("tiny", "small"), "parts of one set, and 1,000 generated images of each target"),
)
