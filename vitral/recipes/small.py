"""Recipes for small datasets, which train in minutes on a laptop: your own photos, CIFAR-10, Fashion-MNIST."""

from collections.abc import Sequence

from vitral.core.config import Size
from vitral.data.transforms.crop import RandomCrop, RandomResizedCrop
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.attention import Attention
from vitral.models.embed import Convolutions, Patches
from vitral.models.mlp import Mlp
from vitral.models.pool import MeanPool
from vitral.models.vit import Tokens, Vit
from vitral.recipes.recipe import DataConfig, Epochs, Images, ImagesSeen, Recipe
from vitral.tasks.classify import Classify, Softmax
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches, WholePatch
from vitral.training.ema import Ema, Polyak
from vitral.training.optimizers import AdamW, Muon
from vitral.training.schedules import Cosine, Linear


def small_vit(image: int, channels: int, patch: int, width: int, depth: int) -> Vit:
    """A plain ViT for square images, with heads of width 32 and mean pooling."""
    return Vit(
        image_size=Size(image, image),
        channels=channels,
        width=width,
        depth=depth,
        stem=Patches(patch=Size(patch, patch)),
        tokens=Tokens(cls=False),
        mixer=Attention(heads=width // 32),
        pool=MeanPool(),
    )


def stem_vit(image: int, channels: int, stem: Sequence[int], width: int, depth: int) -> Vit:
    """A ViT whose patches come from convolutions of stride 2, one for each width of the stem, and one of stride 1.

    Such a stem learns in the first epochs what plain patches take many for. It has no norms, which would hide how
    strong an edge is.
    """
    return Vit(
        image_size=Size(image, image),
        channels=channels,
        width=width,
        depth=depth,
        stem=Convolutions(widths=tuple(stem), same_size=1, norm=False),
        tokens=Tokens(cls=False),
        mixer=Attention(heads=width // 32),
        mlp=Mlp(ratio=2.0),
        pool=MeanPool(norm="after"),
    )


def small_thousands() -> Recipe:
    """Thousands of photos, from scratch.

    Run:     vitral train photos/
    Takes:   8.1 ms of one core of an AMD EPYC for an image, 300,000 of them if there are 7,500 photos or more
    Reaches: not measured here
    """
    return Recipe(
        name="small_thousands",
        model=stem_vit(image=64, channels=3, stem=(32, 64, 128), width=128, depth=6),
        images=Images(crop=RandomResizedCrop(area=(0.3, 1.0))),
        task=Classify(loss=Softmax(smoothing=0.1)),
        length=ImagesSeen(images=300_000, min_epochs=6, max_epochs=40),
        batch_size=64,
        optimizer=Muon(lr=0.014, adamw_lr=2e-3),
        schedule=Linear(warmup=0.05),
        clip="none",
        average=Polyak(start=0.85),
    )


def small_hundred_thousands() -> Recipe:
    """Hundred thousands of photos, from scratch: a wider and deeper model.

    Run:     vitral train photos/
    Takes:   not measured here
    Reaches: not measured here
    """
    return small_thousands().model_copy(
        update={
            "name": "small_hundred_thousands",
            "model": stem_vit(image=64, channels=3, stem=(32, 64, 128), width=192, depth=8),
            "length": ImagesSeen(images=1_000_000, min_epochs=4, max_epochs=20),
            "batch_size": 128,
            "optimizer": Muon(lr=0.02, adamw_lr=2e-3),
        }
    )


CIFAR_NORMALIZE = Normalize(mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262))  # of all pixels of CIFAR-10


def cifar10() -> Recipe:
    """A ViT of 8x8 patches on CIFAR-10 from scratch, with shifts by 2 pixels and flips.

    Run:     vitral train cifar10
    Takes:   7.3 ms of one core of an AMD EPYC for an image and epoch, so 110 minutes of CPU time for 18 epochs
    Reaches: not measured here
    """
    return Recipe(
        name="cifar10",
        model=stem_vit(image=32, channels=3, stem=(64, 128), width=128, depth=6),
        images=Images(crop=RandomCrop(padding=2), normalize=CIFAR_NORMALIZE),
        task=Classify(loss=Softmax(smoothing=0.1)),
        length=Epochs(epochs=18),
        batch_size=100,
        optimizer=Muon(lr=0.02, adamw_lr=2e-3),
        schedule=Linear(warmup=0.05),
        clip="none",
        average=Polyak(start=0.9),
    )


def cifar100() -> Recipe:
    """The same on CIFAR-100.

    Run:     vitral train cifar100
    Takes:   as `cifar10`
    Reaches: not measured here
    """
    return cifar10().model_copy(update={"name": "cifar100"})


# Nearly the whole image: clothes fill the frame, and all shoes point the same way, so nothing is flipped.
MILD_CROP = RandomResizedCrop(area=(0.85, 1.0), aspect=(1 / 1.1, 1.1), flip=False)
FASHION_NORMALIZE = Normalize(mean=(0.286,), std=(0.353,))  # of all pixels of Fashion-MNIST


def gray_vit(patch: int, width: int, depth: int) -> Vit:
    """A plain ViT for gray images of 28x28."""
    return small_vit(28, 1, patch, width, depth)


def sample() -> Recipe:
    """A ViT of 7x7 patches on the 5,000 bundled images, in a minute and a half: the demo.

    On held-out images, after 6 epochs in 40 to 45 CPU seconds, a stem without the last convolution has 1.2% less. After
    2 epochs shifts by 2 pixels cost 6%, so crops are mild.

    Run:     vitral train sample
    Takes:   63 to 75 s on two cores of an AMD EPYC, 123 to 144 CPU seconds
    Reaches: 87.9% of the 1,000 test images (mean of seeds 0 to 2: 87.1%, 90.1% and 86.6%; standard deviation 1.9)
    """
    return Recipe(
        name="sample",
        model=stem_vit(image=28, channels=1, stem=(32, 64), width=64, depth=4),
        images=Images(crop=MILD_CROP, normalize=FASHION_NORMALIZE),
        task=Classify(loss=Softmax(smoothing=0.1)),
        length=Epochs(epochs=20),
        batch_size=50,
        optimizer=Muon(lr=0.014, adamw_lr=3e-3),
        schedule=Linear(warmup=0.05),
        clip="none",
        average=Polyak(start=0.85),
        eval_every=2.0,
    )


def fashion_mnist() -> Recipe:
    """A ViT of 7x7 patches on all of Fashion-MNIST from scratch.

    Run:     vitral train fashion-mnist
    Takes:   2.5 ms of one core of an AMD EPYC for an image and epoch, so 35 minutes of CPU time for 14 epochs
    Reaches: not measured here
    """
    return Recipe(
        name="fashion_mnist",
        model=stem_vit(image=28, channels=1, stem=(48, 96), width=96, depth=4),
        images=Images(crop=MILD_CROP, normalize=FASHION_NORMALIZE),
        task=Classify(loss=Softmax(smoothing=0.1)),
        length=Epochs(epochs=14),
        batch_size=100,
        optimizer=Muon(lr=0.02, adamw_lr=3e-3),
        schedule=Linear(warmup=0.05),
        clip="none",
        average=Polyak(start=0.9),
    )


def fashion_masked() -> Recipe:
    """Masked patch prediction on Fashion-MNIST without labels: weights for `fashion_finetune`.

    Run:     vitral train fashion-mnist --recipe fashion_masked
    Takes:   5 to 6 minutes on one core of an AMD EPYC
    Reaches: a squared error of 0.14 (of scaled pixels) on the test images; for its use see `fashion_finetune`
    """
    return Recipe(
        name="fashion_masked",
        model=gray_vit(patch=7, width=64, depth=4),
        images=Images(crop=MILD_CROP, normalize=FASHION_NORMALIZE),
        task=MaskedPatches(target=WholePatch()),
        length=Epochs(epochs=6),
        batch_size=100,
        optimizer=AdamW(lr=2e-3, weight_decay=0.1),
        schedule=Cosine(warmup=0.1),
        average=Ema(decay=0.98),
    )


def fashion_tenth() -> Recipe:
    """A tenth of the labels of Fashion-MNIST, from scratch: the baseline of `fashion_finetune`.

    Run:     vitral train fashion-mnist --recipe fashion_tenth
    Takes:   1 to 2 minutes on one core of an AMD EPYC
    Reaches: 80.2% of the 10,000 test images (seeds 0-2: 80.4, 80.0, 80.1)
    """
    return Recipe(
        name="fashion_tenth",
        data=DataConfig(fraction=0.1),
        model=gray_vit(patch=7, width=64, depth=4),
        images=Images(crop=MILD_CROP, normalize=FASHION_NORMALIZE),
        length=Epochs(epochs=10),
        batch_size=50,
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
        schedule=Cosine(warmup=0.1),
        average=Ema(decay=0.98),
    )


def fashion_finetune() -> Recipe:
    """The same tenth of the labels, from the weights of `fashion_masked`.

    Run:     vitral train fashion-mnist --recipe fashion_finetune --weights RUN
    Takes:   1 to 2 minutes on one core of an AMD EPYC, after `fashion_masked`
    Reaches: 83.0% of the 10,000 test images (seeds 0-2, each with its own pre-training: 83.1, 82.7, 83.3)
    """
    return fashion_tenth().model_copy(update={"name": "fashion_finetune"})
