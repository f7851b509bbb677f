"""CIFAR-10 and CIFAR-100: 50,000 small colour photos."""

from vitral.data.transforms.scaling import Scaling
from vitral.data.transforms.view import InceptionCrop
from vitral.recipe import Epochs, Images, Recipe
from vitral.recipes.small import small_vit
from vitral.tasks.classify import Classify
from vitral.tasks.loss import Softmax
from vitral.train.average import Exponential
from vitral.train.optimiser import AdamW
from vitral.train.schedule import Cosine

PHOTOS = Scaling(mean=(0.491, 0.482, 0.447), deviation=(0.247, 0.243, 0.262))  # of all pixels of CIFAR-10


def cifar10() -> Recipe:
    """A plain ViT of 64 patches of 4x4 pixels, from scratch.

    Run:     vitral train cifar10
    Takes:   not measured here
    Reaches: not measured here
    """
    return Recipe(
        name="cifar10",
        model=small_vit(image=32, channels=3, patch=4, width=128, depth=6),
        images=Images(view=InceptionCrop(area=(0.5, 1.0)), scaling=PHOTOS),
        task=Classify(loss=Softmax(smoothing=0.1)),
        length=Epochs(epochs=18),
        batch=128,
        optimiser=AdamW(rate=1e-3, decay=0.1),
        schedule=Cosine(warmup=0.05),
        average=Exponential(decay=0.998),
    )
