"""What each arm trains: one small encoder for all of them, and the constants of each method.

The constants are those of the recipes with a smaller batch and, for short runs, higher learning rates and teachers that
follow faster. They were not chosen by trials yet.
"""

from collections.abc import Mapping, Sequence

from benchmarks.selfsupervision.cells import Cell
from vitral.core.config import override
from vitral.data.transforms.augment import RandomColorJitter, RandomGrayscale
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.models.position import SinCos2d
from vitral.models.vit import Vit
from vitral.recipes.recipe import Images, Recipe
from vitral.recipes.selfsupervised import CIFAR, CIFAR_RECIPES, model
from vitral.recipes.small import CIFAR_NORMALIZE, cifar10
from vitral.tasks.classify import Classify, Softmax
from vitral.training.optimizers import AdamW
from vitral.training.schedules import Cosine

DATASET = "cifar10"
LABELS = 0.1  # the part of the labels that tuning and supervised training have
PROBED = 0.2  # the part of the training images among which neighbors are searched, and that the probe is fitted to
HELD_OUT = {"val": 0.1, "test": 0.02}  # the part of the training images that pre-training sees only for its loss
SMALL = CIFAR._replace(patch=8, width=96, depth=4)
# What the recipe of a method for CIFAR-10 is given for the small encoder and the short time.
CONSTANTS: Mapping[str, Sequence[str]] = {
    "dino": ("batch_size=128", "optimizer.lr=1e-3", "task.momentum.start=0.98"),
    "ibot": ("batch_size=128", "optimizer.lr=1e-3", "task.momentum.start=0.98"),
    "moco_v3": ("optimizer.lr=1e-3",),
    "lejepa": ("batch_size=128",),
    "mae": ("batch_size=128", "task.decoder.width=96", "task.decoder.heads=3"),
    "masked_patches": ("batch_size=128",),
    "ijepa": ("batch_size=128", "task.predictor.width=96", "task.predictor.heads=3"),
}


def encoder() -> Vit:
    """The encoder of all arms but iGPT, which sees colors and not patches, and the best supervised recipe."""
    return model(SMALL, SinCos2d(endpoint=False), pooled=False)


def pretraining(cell: Cell) -> Recipe:
    """The training of a method without labels."""
    recipe = CIFAR_RECIPES[cell.arm]()
    if cell.arm != "igpt":
        recipe = recipe.model_copy(update={"model": encoder()})
    recipe = override(recipe, CONSTANTS.get(cell.arm, ()))
    return prepared(recipe, cell, HELD_OUT[cell.split], fraction=1.0)


def tuning(cell: Cell, weights: str = "") -> Recipe:
    """The training with a tenth of the labels, from weights or from scratch: the same but for the learning rate."""
    if cell.arm == "best scratch":
        recipe = cifar10()
    else:
        crop = RandomResizedCrop(area=(0.3, 1.0), filter="bicubic")
        recipe = Recipe(
            name="tenth",
            model=encoder(),
            weights=weights,
            images=Images(crop=crop, augment=(RandomColorJitter(), RandomGrayscale()), normalize=CIFAR_NORMALIZE),
            task=Classify(loss=Softmax(smoothing=0.1)),
            batch_size=128,
            optimizer=AdamW(lr=1e-3, weight_decay=0.1),
            schedule=Cosine(warmup=0.1),
        )
    return prepared(recipe, cell, HELD_OUT["val"] if cell.split == "val" else 0.0, LABELS)


def prepared(recipe: Recipe, cell: Cell, held_out: float, fraction: float) -> Recipe:
    """The recipe on one thread, with the seed of the cell for weights, order and labels, evaluated at its end."""
    data = recipe.data.model_copy(update={"path": DATASET, "hold_out": held_out, "fraction": fraction})
    data = data.model_copy(update={"split": data.split.model_copy(update={"seed": cell.seed})})
    alone: dict[str, object] = {"device": "cpu", "workers": 0, "threads": 1, "seed": cell.seed, "eval_every": 1e6}
    return override(recipe.model_copy(update={"data": data}), alone)
