"""Recipes of iGPT: images of a few hundred pixels as sequences of colors. `vitral train DATA --task igpt` chooses."""

from typing import NamedTuple

from vitral.core.config import Size
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.attention import Causal
from vitral.models.embed import Palette
from vitral.models.init import ImageGpt
from vitral.models.mlp import Mlp
from vitral.models.norm import RmsNorm
from vitral.models.pool import MeanPool
from vitral.models.vit import Vit
from vitral.recipes.recipe import Images, ImagesSeen, LengthConfig, Recipe
from vitral.tasks.selfsupervised.igpt import Igpt
from vitral.training.optimizers import AdamW
from vitral.training.schedules import Cosine


class Pixels(NamedTuple):
    """The sequence of pixels of a recipe, and a model for it. The work grows with the square of its length."""

    side: int  # of the image
    channels: int
    colors: int
    width: int
    depth: int
    length: LengthConfig


FASHION = Pixels(14, 1, 32, 64, 4, ImagesSeen(images=120_000, min_epochs=2, max_epochs=50))
CIFAR = Pixels(16, 3, 512, 128, 6, ImagesSeen(images=200_000, min_epochs=2, max_epochs=50))
PHOTOS = Pixels(24, 3, 512, 128, 6, ImagesSeen(images=50_000, min_epochs=2, max_epochs=200))


def igpt(name: str, pixels: Pixels) -> Recipe:
    """The architecture of the authors, small: causal, without biases, RMSNorm, and their initialization."""
    vit = Vit(
        image_size=Size(pixels.side, pixels.side),
        any_size=False,  # it learns sequences of one length
        channels=pixels.channels,
        width=pixels.width,
        depth=pixels.depth,
        stem=Palette(colors=pixels.colors),
        mixer=Causal(heads=pixels.width // 32, qkv_bias=False, project_bias=False),
        mlp=Mlp(activation="quick_gelu", bias=False),
        norm=RmsNorm(),
        eps=1e-5,
        pool=MeanPool(),
        init=ImageGpt(),
    )
    return Recipe(
        name=name,
        model=vit,
        images=Images(crop=RandomResizedCrop(area=(0.5, 1.0), filter="bicubic"), normalize=CENTERED),
        task=Igpt(),
        length=pixels.length,
        batch_size=64,
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0),
        schedule=Cosine(warmup=0.1),
        clip=1.0,
    )


def fashion_igpt() -> Recipe:
    """iGPT on Fashion-MNIST, in 32 levels of gray of 14x14 pixels, without labels.

    Run:     vitral train fashion-mnist --task igpt
    Takes:   not measured here
    Reaches: not measured here
    """
    return igpt("fashion_igpt", FASHION)


def cifar10_igpt() -> Recipe:
    """iGPT on CIFAR-10, in 512 colors of 16x16 pixels, without labels.

    Run:     vitral train cifar10 --task igpt
    Takes:   not measured here
    Reaches: not measured here
    """
    return igpt("cifar10_igpt", CIFAR)


def photos_igpt() -> Recipe:
    """iGPT on a folder of photos, in 512 colors of 24x24 pixels, without labels.

    Run:     vitral train photos/ --task igpt
    Takes:   not measured here
    Reaches: not measured here
    """
    return igpt("photos_igpt", PHOTOS)
