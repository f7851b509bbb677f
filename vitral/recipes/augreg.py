"""AugReg, "How to train your ViT?" (arXiv 2106.10270), and plain ViT baselines for ImageNet-1k (arXiv 2205.01580).

As in google-research/big_vision. Larger models need more augmentation, larger datasets less; the tables are Google's
choice for runs of 30 to 300 epochs. A model that is not in them is augmented like B/16.
"""

from typing import NamedTuple

from vitral.data.transforms.augment import Augment, RandAugment
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.mixup import Mixing, Mixup, NoMixing
from vitral.models.registry import model_config
from vitral.recipes.recipe import Epochs, Images, Recipe
from vitral.tasks.classify import Classify, Sigmoid
from vitral.training.optimizers import AdamW
from vitral.training.schedules import Cosine


class Preset(NamedTuple):
    """The augmentations of each training image, in order, and the mixing of each batch."""

    augment: tuple[Augment, ...]
    mixing: Mixing


def _two_layers(magnitude: int) -> tuple[Augment, ...]:
    return (RandAugment(layers=2, magnitude=magnitude),)


# light1 is not light: magnitude 0 inverts images, darkens them to a tenth, or leaves one bit.
AUGREG = {
    "none": Preset((), NoMixing()),
    "light1": Preset(_two_layers(0), NoMixing()),
    "light2": Preset(_two_layers(10), Mixup(alpha=0.2)),
    "medium1": Preset(_two_layers(15), Mixup(alpha=0.2)),
    "medium2": Preset(_two_layers(15), Mixup(alpha=0.5)),
    "strong1": Preset(_two_layers(20), Mixup(alpha=0.5)),
    "strong2": Preset(_two_layers(20), Mixup(alpha=0.8)),
}


IMAGENET = {
    "Ti/16": "light1",
    "S/32": "light2",
    "S/16": "medium2",
    "B/32": "medium2",
    "B/16": "medium2",
    "L/16": "medium2",
}
IMAGENET21K = {"Ti/16": "none", "S/32": "none", "S/16": "light1", "B/32": "light2", "B/16": "light2", "L/16": "medium2"}


def augreg_recipe(name: str, model: str, preset: str, bias: float) -> Recipe:
    """The settings that both datasets share."""
    augment, mixing = AUGREG[preset]
    return Recipe(
        name=name,
        model=model_config(model, {"head.bias": bias}),
        images=Images(augment=augment, eval_crop=CenterCrop(fraction=0.875)),
        task=Classify(loss=Sigmoid(), mixing=mixing),
        length=Epochs(epochs=300),
        batch_size=4096,
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
        schedule=Cosine(warmup=10_000),
    )


def augreg_imagenet(model: str = "B/16") -> Recipe:
    """Any model on ImageNet, augmented according to its size.

    Run:     vitral train imagenet/ --recipe augreg_imagenet --model S/16
    Takes:   not measured here
    Reaches: not measured here
    """
    return augreg_recipe("augreg_imagenet", model, IMAGENET.get(model, IMAGENET["B/16"]), bias=-6.9)


def augreg_imagenet21k(model: str = "B/16") -> Recipe:
    """Any model on ImageNet-21k, which is so large that small models need no augmentation.

    Run:     vitral train imagenet21k/ --recipe augreg_imagenet21k --model L/16
    Takes:   not measured here
    Reaches: not measured here
    """
    return augreg_recipe("augreg_imagenet21k", model, IMAGENET21K.get(model, IMAGENET21K["B/16"]), bias=-10.0)


def plain_imagenet(model: str = "S/16") -> Recipe:
    """S/16 on ImageNet in 90 epochs: mean pooling, fixed positions, small batches, light augmentation.

    The paper has 76.5% after 90 epochs and 80.0% after 300: --epochs 300.

    Run:     vitral train imagenet/ --recipe plain_imagenet
    Takes:   not measured here
    Reaches: not measured here
    """
    augment, mixing = AUGREG["light2"]
    return Recipe(
        name="plain_imagenet",
        model=model_config(model, {"position": "sincos2d", "pool": "mean", "tokens.cls": False}),
        images=Images(augment=augment, eval_crop=CenterCrop(fraction=0.875)),
        task=Classify(mixing=mixing),
        length=Epochs(epochs=90),
        batch_size=1024,
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
        schedule=Cosine(warmup=10_000),
    )
