"""Recipes for a folder of your own photos: hundreds of them from scratch, and any number from given weights."""

from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.mixup import CutMix
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.recipe import Epochs, Images, ImagesSeen, Recipe
from vitral.recipes.small import stem_vit
from vitral.tasks.classify import Classify, Softmax
from vitral.training.ema import Polyak
from vitral.training.finetune import LinearProbeThenFinetune, Staged
from vitral.training.optimizers import AdamW, Muon
from vitral.training.schedules import Cosine, Linear


def small_hundreds() -> Recipe:
    """Hundreds of photos, from scratch: a small model on strong crops, 15% of the area at the least.

    Run:     vitral train photos/
    Takes:   102 s of one core of an AMD EPYC for 243 photos
    Reaches: 73.9% of 153 photos of ants and bees (seed 0); the majority class has 54%
    """
    return Recipe(
        name="small_hundreds",
        model=stem_vit(image=64, channels=3, stem=(32, 64, 128), width=128, depth=4),
        images=Images(crop=RandomResizedCrop(area=(0.15, 1.0))),
        task=Classify(loss=Softmax(smoothing=0.1), mixing=CutMix()),
        length=Epochs(epochs=60),
        batch_size=32,
        optimizer=Muon(lr=0.014, adamw_lr=2e-3),
        schedule=Linear(warmup=0.05),
        clip="none",
        average=Polyak(start=0.85),
        eval_every=5.0,
    )


LR_AT_WIDTH_1 = 0.06  # at a width of 1: 8e-5 for B, 1.6e-4 for S


def photos(model: str | Vit | Resnet = "S/16") -> Recipe:
    """Dozens to thousands of photos, from given weights: the default with `--from`, with their model and preprocessing.

    The head is fitted to frozen features first. Then the last layers train on tokens that are computed once, then all
    layers if they fit into the time; held-out images decide what is kept (`finetune=staged`). The learning rate is
    small, smaller for wider models and lower layers: with one rate for all layers and an unregularized head, a few
    steps broke a ViT-S/14 whose last layers have layer scales of up to 11. Mild crops keep the subject in view; the
    mean over the last quarter of a stage needs no decay that depends on the number of images. What to change first:
    `lr`, `finetune.seconds`, `finetune=lp_ft` to train all layers, `finetune=lora` to save memory.

    Run:     vitral train photos/ --weights WEIGHTS
    Takes:   as planned, 4.5 minutes for up to 450 photos; 63 minutes of one core of an AMD EPYC with `finetune=lp_ft`
    Reaches: with `finetune=lp_ft`, 91.5% with a ViT-S/14 on 243 photos of 2 classes; 67.3% on 1,000 images of 32x32
    """
    config = model_config(model)
    width, decay = (config.width, 0.75) if isinstance(config, Vit) else (config.out_channels(), 1.0)
    return Recipe(
        name="photos",
        model=config,
        finetune=Staged() if isinstance(config, Vit) else LinearProbeThenFinetune(),
        images=Images(crop=RandomResizedCrop(area=(0.5, 1.0))),
        length=ImagesSeen(images=30_000, min_epochs=5, max_epochs=30),
        batch_size=32,
        optimizer=AdamW(lr=LR_AT_WIDTH_1 / width, weight_decay=0.05, layer_decay=decay),
        schedule=Cosine(warmup=0.2),
        clip=1.0,
        average=Polyak(start=0.75),
    )
