"""Recipes without labels, each method on three sorts of data: Fashion-MNIST, CIFAR-10, and a folder of photos.

They are small, for hours on a laptop, with the authors' constants where these do not depend on the size of the model:
`(authors)` marks them. What differs is that models, heads and batches are small, and so learning rates are higher.
`vitral train DATA --task KIND` chooses among them.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vitral.core.config import Size, override
from vitral.data.transforms.augment import (
    Augment,
    RandomBlur,
    RandomColorJitter,
    RandomGrayscale,
    RandomSolarize,
)
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.preprocessing import IMAGENET, Normalize
from vitral.data.transforms.views import MultiCrop, TwoViews, View
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.mlp import Mlp
from vitral.models.pool import ClassPool, MeanPool
from vitral.models.position import Learned1d, SinCos2d
from vitral.models.vit import Tokens, Vit
from vitral.recipes.igpt import cifar10_igpt, fashion_igpt, photos_igpt
from vitral.recipes.recipe import Epochs, Images, ImagesSeen, LengthConfig, Recipe
from vitral.recipes.small import CIFAR_NORMALIZE, FASHION_NORMALIZE, fashion_masked, small_vit
from vitral.tasks import TaskConfig
from vitral.tasks.selfsupervised.beit import Beit
from vitral.tasks.selfsupervised.dino import Dino, DinoOutputs
from vitral.tasks.selfsupervised.ibot import Ibot
from vitral.tasks.selfsupervised.ijepa import Ijepa, Predictor
from vitral.tasks.selfsupervised.lejepa import Lejepa, SigRegOutputs
from vitral.tasks.selfsupervised.mae import Decoder, Mae
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches, WholePatch
from vitral.tasks.selfsupervised.moco_v3 import MocoHead, MocoV3
from vitral.tasks.selfsupervised.simmim import SimMim
from vitral.tasks.selfsupervised.targets.codes import PatchCodes
from vitral.training.clip import PerParameterClip
from vitral.training.optimizers import AdamW, CosineDecay
from vitral.training.schedules import Cosine


class Scale(NamedTuple):
    """The data of a recipe, and a model that learns from it in hours."""

    image: int  # pixels of a side
    channels: int
    patch: int
    width: int
    depth: int
    local: int  # pixels of a side of the small views
    area: float  # the least part of the image that a large view has
    normalize: Normalize
    colors: tuple[Augment, ...]
    first: tuple[Augment, ...]  # of the first large view, after the colors
    second: tuple[Augment, ...]
    length: LengthConfig


COLORS: tuple[Augment, ...] = (RandomColorJitter(), RandomGrayscale())  # (authors) of DINO, iBOT and MoCo v3
BLUR = RandomBlur(probability=1.0)
SOLARIZE: tuple[Augment, ...] = (RandomBlur(probability=0.1), RandomSolarize(probability=0.2))
# Gray images have no colors, and small ones are blurred enough.
FASHION = Scale(
    28, 1, 4, 64, 4, 16, 0.4, FASHION_NORMALIZE, (), (), (), ImagesSeen(images=120_000, min_epochs=2, max_epochs=50)
)
CIFAR = Scale(
    32, 3, 4, 128, 6, 16, 0.4, CIFAR_NORMALIZE, COLORS, (), (RandomSolarize(probability=0.2),),
    ImagesSeen(images=500_000, min_epochs=5, max_epochs=100),
)  # fmt: skip
PHOTOS = Scale(
    64, 3, 8, 128, 6, 32, 0.4, IMAGENET, COLORS, (BLUR,), SOLARIZE,
    ImagesSeen(images=300_000, min_epochs=5, max_epochs=200),
)  # fmt: skip
BATCH = 256
HEAD = DinoOutputs(outputs=1024, hidden=512, bottleneck=128)


def model(scale: Scale, position: Learned1d | SinCos2d, pooled: bool) -> Vit:
    """A ViT with a class token, which is pooled, or the mean of the patches where a method trains them."""
    return Vit(
        image_size=Size(scale.image, scale.image),
        channels=scale.channels,
        width=scale.width,
        depth=scale.depth,
        stem=Patches(patch=Size(scale.patch, scale.patch)),
        tokens=Tokens(cls=pooled),
        position=position,
        mixer=Attention(heads=scale.width // 32),
        mlp=Mlp(activation="gelu"),
        pool=ClassPool() if pooled else MeanPool(),
    )


def recipe(name: str, scale: Scale, task: TaskConfig, images: Images, vit: Vit, optimizer: AdamW) -> Recipe:
    """A run of a method: a linear warmup over a tenth of it, then half a cosine."""
    return Recipe(
        name=name,
        model=vit,
        images=images.model_copy(update={"normalize": scale.normalize}),
        task=task,
        length=scale.length,
        batch_size=BATCH,
        optimizer=optimizer,
        schedule=Cosine(warmup=0.1),
        clip="none",
    )


def masked(name: str, scale: Scale, task: TaskConfig, area: float, weight_decay: float = 0.05) -> Recipe:
    """A method that predicts patches from others: crops and flips only, fixed positions."""
    adamw = AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=weight_decay, decayed="matrices")
    images = Images(crop=RandomResizedCrop(area=(area, 1.0), filter="bicubic"))
    return recipe(name, scale, task, images, model(scale, SinCos2d(endpoint=False), pooled=False), adamw)


def crops(scale: Scale) -> MultiCrop:
    """Two large views and four small ones."""
    large = RandomResizedCrop(area=(scale.area, 1.0), filter="bicubic")
    small = RandomResizedCrop(area=(0.05, scale.area), filter="bicubic")
    return MultiCrop(
        first=View(crop=large, augment=(*scale.colors, *scale.first)),
        second=View(crop=large, augment=(*scale.colors, *scale.second)),
        local=View(crop=small, augment=scale.colors, size=Size(scale.local, scale.local)),
        local_views=4,
    )


def distillation(name: str, scale: Scale, task: TaskConfig) -> Recipe:
    """A method whose student predicts its teacher: several crops, a rising weight decay, each gradient clipped."""
    decay = CosineDecay(end=0.4)  # (authors), with the weight decay and the clip
    adamw = AdamW(lr=5e-4, weight_decay=0.04, decay_schedule=decay, decayed="matrices")
    vit = model(scale, Learned1d(), pooled=True)
    found = recipe(name, scale, task, Images(views=crops(scale)), vit, adamw)
    return found.model_copy(update={"clip": PerParameterClip(max_norm=3.0)})


def mae(name: str, scale: Scale) -> Recipe:
    """MAE with a decoder of two layers."""
    task = Mae(decoder=Decoder(width=scale.width, depth=2, heads=scale.width // 32))
    return masked(name, scale, task, area=0.2)  # (authors), with the weight decay and betas


def moco(name: str, scale: Scale) -> Recipe:
    """MoCo v3 with two crops and fixed positions."""
    crop = RandomResizedCrop(area=(0.2, 1.0), filter="bicubic")
    first = View(crop=crop, augment=(*scale.colors, *scale.first))
    views = TwoViews(first=first, second=View(crop=crop, augment=(*scale.colors, *scale.second)))
    task = MocoV3(head=MocoHead(hidden=512, outputs=128))
    adamw = AdamW(lr=5e-4, weight_decay=0.1, decayed="all")  # (authors) the weight decay, of all weights
    vit = model(scale, SinCos2d(endpoint=False), pooled=True)
    return recipe(name, scale, task, Images(views=views), vit, adamw)


def lejepa(name: str, scale: Scale) -> Recipe:
    """LeJEPA with several crops."""
    task = Lejepa(head=SigRegOutputs(hidden=512, outputs=16), weight=0.02)  # (authors) outputs and weight on Imagenette
    adamw = AdamW(lr=2e-3, weight_decay=0.05, decayed="all")  # (authors)
    vit = model(scale, Learned1d(), pooled=True)
    return recipe(name, scale, task, Images(views=crops(scale)), vit, adamw)


def ijepa(name: str, scale: Scale) -> Recipe:
    """I-JEPA with a predictor of four layers; crops only, no flips (authors)."""
    predictor = Predictor(width=scale.width, depth=4, heads=scale.width // 32)
    found = masked(name, scale, Ijepa(predictor=predictor), area=0.3)
    images = Images(crop=RandomResizedCrop(area=(0.3, 1.0), flip=False, filter="bicubic"), normalize=scale.normalize)
    adamw = AdamW(lr=1e-3, weight_decay=0.04, decay_schedule=CosineDecay(end=0.4), decayed="matrices")  # (authors)
    return found.model_copy(update={"images": images, "optimizer": adamw})


def fashion_mae() -> Recipe:
    """MAE on Fashion-MNIST, without labels.

    Run:     vitral train fashion-mnist --task mae
    Takes:   not measured here
    Reaches: not measured here
    """
    return mae("fashion_mae", FASHION)


def fashion_dino() -> Recipe:
    """DINO on Fashion-MNIST, without labels.

    Run:     vitral train fashion-mnist --task dino
    Takes:   not measured here
    Reaches: not measured here
    """
    return distillation("fashion_dino", FASHION, Dino(head=HEAD))


def fashion_ibot() -> Recipe:
    """iBOT on Fashion-MNIST, without labels.

    Run:     vitral train fashion-mnist --task ibot
    Takes:   not measured here
    Reaches: not measured here
    """
    return distillation("fashion_ibot", FASHION, Ibot(head=HEAD))


def fashion_moco_v3() -> Recipe:
    """MoCo v3 on Fashion-MNIST, without labels.

    Run:     vitral train fashion-mnist --task moco_v3
    Takes:   not measured here
    Reaches: not measured here
    """
    return moco("fashion_moco_v3", FASHION)


def fashion_ijepa() -> Recipe:
    """I-JEPA on Fashion-MNIST, without labels.

    Run:     vitral train fashion-mnist --task ijepa
    Takes:   not measured here
    Reaches: not measured here
    """
    return ijepa("fashion_ijepa", FASHION)


def fashion_lejepa() -> Recipe:
    """LeJEPA on Fashion-MNIST, without labels.

    Run:     vitral train fashion-mnist --task lejepa
    Takes:   not measured here
    Reaches: not measured here
    """
    return lejepa("fashion_lejepa", FASHION)


def cifar10_masked_patches() -> Recipe:
    """Masked patch prediction on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task masked_patches
    Takes:   not measured here
    Reaches: not measured here
    """
    return masked("cifar10_masked_patches", CIFAR, MaskedPatches(target=WholePatch()), area=0.2)


def cifar10_mae() -> Recipe:
    """MAE on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task mae
    Takes:   not measured here
    Reaches: not measured here
    """
    return mae("cifar10_mae", CIFAR)


def cifar10_dino() -> Recipe:
    """DINO on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task dino
    Takes:   not measured here
    Reaches: not measured here
    """
    return distillation("cifar10_dino", CIFAR, Dino(head=HEAD))


def cifar10_ibot() -> Recipe:
    """iBOT on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task ibot
    Takes:   not measured here
    Reaches: not measured here
    """
    return distillation("cifar10_ibot", CIFAR, Ibot(head=HEAD))


def cifar10_moco_v3() -> Recipe:
    """MoCo v3 on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task moco_v3
    Takes:   not measured here
    Reaches: not measured here
    """
    return moco("cifar10_moco_v3", CIFAR)


def cifar10_ijepa() -> Recipe:
    """I-JEPA on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task ijepa
    Takes:   not measured here
    Reaches: not measured here
    """
    return ijepa("cifar10_ijepa", CIFAR)


def cifar10_lejepa() -> Recipe:
    """LeJEPA on CIFAR-10, without labels.

    Run:     vitral train cifar10 --task lejepa
    Takes:   not measured here
    Reaches: not measured here
    """
    return lejepa("cifar10_lejepa", CIFAR)


def photos_masked_patches() -> Recipe:
    """Masked patch prediction on a folder of photos, without labels.

    Run:     vitral train photos/ --task masked_patches
    Takes:   not measured here
    Reaches: not measured here
    """
    return masked("photos_masked_patches", PHOTOS, MaskedPatches(target=WholePatch()), area=0.2)


def photos_mae() -> Recipe:
    """MAE on a folder of photos, without labels.

    Run:     vitral train photos/ --task mae
    Takes:   not measured here
    Reaches: not measured here
    """
    return mae("photos_mae", PHOTOS)


def photos_dino() -> Recipe:
    """DINO on a folder of photos, without labels.

    Run:     vitral train photos/ --task dino
    Takes:   not measured here
    Reaches: not measured here
    """
    return distillation("photos_dino", PHOTOS, Dino(head=HEAD))


def photos_ibot() -> Recipe:
    """iBOT on a folder of photos, without labels.

    Run:     vitral train photos/ --task ibot
    Takes:   not measured here
    Reaches: not measured here
    """
    return distillation("photos_ibot", PHOTOS, Ibot(head=HEAD))


def photos_moco_v3() -> Recipe:
    """MoCo v3 on a folder of photos, without labels.

    Run:     vitral train photos/ --task moco_v3
    Takes:   not measured here
    Reaches: not measured here
    """
    return moco("photos_moco_v3", PHOTOS)


def photos_ijepa() -> Recipe:
    """I-JEPA on a folder of photos, without labels.

    Run:     vitral train photos/ --task ijepa
    Takes:   not measured here
    Reaches: not measured here
    """
    return ijepa("photos_ijepa", PHOTOS)


def photos_lejepa() -> Recipe:
    """LeJEPA on a folder of photos, without labels.

    Run:     vitral train photos/ --task lejepa
    Takes:   not measured here
    Reaches: not measured here
    """
    return lejepa("photos_lejepa", PHOTOS)


def cifar10_simmim() -> Recipe:
    """SimMIM on CIFAR-10: squares of 8 pixels are hidden, two patches on each side.

    Run:     vitral train cifar10 --task simmim
    Takes:   not measured here
    Reaches: not measured here
    """
    return Recipe(
        name="cifar10_simmim",
        model=small_vit(32, 3, patch=4, width=128, depth=6),
        images=Images(crop=RandomResizedCrop(area=(0.67, 1.0)), normalize=CIFAR_NORMALIZE),
        task=SimMim(unit=Size(8, 8)),
        length=Epochs(epochs=10),
        batch_size=128,
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        schedule=Cosine(warmup=0.1),
        clip=3.0,
    )


def cifar10_beit() -> Recipe:
    """BEiT on CIFAR-10, with 512 codes of patches from k-means in place of a trained tokenizer.

    Run:     vitral train cifar10 --recipe cifar10_beit
    Takes:   not measured here
    Reaches: not measured here
    """
    simmim = cifar10_simmim()
    model = override(simmim.model, ["position=combined", "position.inside=relative_bias", "init=depth_scaled"])
    task = Beit(ratio=0.4, least=4, target=PatchCodes(codes=512))
    return simmim.model_copy(update={"name": "cifar10_beit", "model": model, "task": task})


Recipes = Mapping[str, Callable[[], Recipe]]  # by the kind of the task
FASHION_RECIPES: Recipes = {
    "masked_patches": fashion_masked,
    "mae": fashion_mae,
    "dino": fashion_dino,
    "ibot": fashion_ibot,
    "moco_v3": fashion_moco_v3,
    "ijepa": fashion_ijepa,
    "lejepa": fashion_lejepa,
    "igpt": fashion_igpt,
}
CIFAR_RECIPES: Recipes = {
    "masked_patches": cifar10_masked_patches,
    "mae": cifar10_mae,
    "dino": cifar10_dino,
    "ibot": cifar10_ibot,
    "moco_v3": cifar10_moco_v3,
    "ijepa": cifar10_ijepa,
    "lejepa": cifar10_lejepa,
    "igpt": cifar10_igpt,
    "simmim": cifar10_simmim,
    "beit": cifar10_beit,
}
PHOTOS_RECIPES: Recipes = {
    "masked_patches": photos_masked_patches,
    "mae": photos_mae,
    "dino": photos_dino,
    "ibot": photos_ibot,
    "moco_v3": photos_moco_v3,
    "ijepa": photos_ijepa,
    "lejepa": photos_lejepa,
    "igpt": photos_igpt,
}
BY_DATASET: Mapping[str, Recipes] = {
    "sample": FASHION_RECIPES,
    "digits": FASHION_RECIPES,
    "fashion-mnist": FASHION_RECIPES,
    "mnist": FASHION_RECIPES,
    "cifar10": CIFAR_RECIPES,
    "cifar100": CIFAR_RECIPES,
}
