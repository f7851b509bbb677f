"""AugReg: "How to train your ViT?" (arXiv 2106.10270), as in google-research/big_vision.

How much augmentation a model wants grows with its size and shrinks with the data; the tables are Google's choice for
runs of 30 to 300 epochs. A model that they leave out is augmented like B/16.
"""

from vitral.data.transforms.presets import AUGREG
from vitral.data.transforms.view import CentreCrop
from vitral.model.names import model_config
from vitral.recipe import Epochs, Images, Recipe
from vitral.tasks.classify import Classify
from vitral.tasks.loss import Sigmoid
from vitral.train.optimiser import AdamW
from vitral.train.schedule import Cosine

IMAGENET = {
    "Ti/16": "light1",
    "S/32": "light2",
    "S/16": "medium2",
    "B/32": "medium2",
    "B/16": "medium2",
    "L/16": "medium2",
}
IMAGENET21K = {
    "Ti/16": "none",
    "S/32": "none",
    "S/16": "light1",
    "B/32": "light2",
    "B/16": "light2",
    "L/16": "medium2",
}


def trained(name: str, model: str, preset: str, bias: float) -> Recipe:
    """What both sets have in common."""
    augment, mixing = AUGREG[preset]
    return Recipe(
        name=name,
        model=model_config(model, f"head.bias={bias}"),
        images=Images(augment=augment, still=CentreCrop(fraction=0.875)),
        task=Classify(loss=Sigmoid(), mixing=mixing),
        length=Epochs(epochs=300),
        batch=4096,
        optimiser=AdamW(rate=1e-3, decay=0.1),
        schedule=Cosine(warmup=10_000),
    )


def augreg_imagenet(model: str = "B/16") -> Recipe:
    """Any model on ImageNet, augmented as its size wants.

    Run:     vitral train imagenet/ --recipe augreg_imagenet --model S/16
    Takes:   not measured here
    Reaches: not measured here
    """
    return trained("augreg_imagenet", model, IMAGENET.get(model, IMAGENET["B/16"]), bias=-6.9)


def augreg_imagenet21k(model: str = "B/16") -> Recipe:
    """Any model on ImageNet-21k, which is so large that small models want no augmentation.

    Run:     vitral train imagenet21k/ --recipe augreg_imagenet21k --model L/16
    Takes:   not measured here
    Reaches: not measured here
    """
    return trained("augreg_imagenet21k", model, IMAGENET21K.get(model, IMAGENET21K["B/16"]), bias=-10.0)
