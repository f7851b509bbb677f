"""CIFAR-10 and CIFAR-100: 50,000 small colour photos."""

from vitral.config import Size
from vitral.data.transforms.scaling import Scaling
from vitral.data.transforms.view import InceptionCrop
from vitral.model.attention import Attention
from vitral.model.patches import Patches
from vitral.model.pool import MeanPool
from vitral.model.vit import Tokens, Vit
from vitral.recipe import Epochs, Images, Recipe
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
    model = Vit(
        image=Size(32, 32),
        width=128,
        depth=6,
        stem=Patches(patch=Size(4, 4)),
        tokens=Tokens(cls=False),
        mixer=Attention(heads=4),
        pool=MeanPool(),
    )
    return Recipe(
        name="cifar10",
        model=model,
        images=Images(view=InceptionCrop(area=(0.5, 1.0)), scaling=PHOTOS),
        task=Classify(loss=Softmax(smoothing=0.1)),
        length=Epochs(epochs=18),
        batch=128,
        optimiser=AdamW(rate=1e-3, decay=0.1),
        schedule=Cosine(warmup=0.05),
        average=Exponential(decay=0.998),
    )
