"""The paper's own training (arXiv 2010.11929): pre-training of Table 3, fine-tuning of Table 4.

Values that the tables leave out follow google-research/vision_transformer and its maintainers.
"""

import logging
from typing import NamedTuple

from vitral.core.config import Size
from vitral.data.samples import StratifiedSplit
from vitral.models.base import nearest_multiple
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.recipes.recipe import DataConfig, Epochs, ModelConfig, Recipe, Steps
from vitral.tasks.classify import Classify, Sigmoid
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.training.optimizers import AdamW, Sgd
from vitral.training.schedules import Cosine, Linear

log = logging.getLogger("vitral")
END_LR = 1e-5  # at the end of a linear decay
FINETUNE_SIZE = Size(384, 384)


class JftRow(NamedTuple):
    """A row of Table 3 for JFT-300M."""

    epochs: int
    lr: float


JFT = {
    "B/32": JftRow(7, 8e-4),
    "B/16": JftRow(7, 8e-4),
    "L/32": JftRow(7, 6e-4),
    "L/16": JftRow(14, 4e-4),  # Table 6 has it after 7 epochs too
    "H/14": JftRow(14, 3e-4),
    "R50x1": JftRow(7, 1e-3),
    "R50x2": JftRow(7, 1e-3),
    "R101x1": JftRow(7, 8e-4),
    "R152x1": JftRow(7, 6e-4),
    "R152x2": JftRow(7, 6e-4),
    "R50+B/32": JftRow(7, 8e-4),
    "R50+B/16": JftRow(7, 8e-4),
    "R50+L/32": JftRow(7, 2e-4),
    "R50+L/16": JftRow(14, 4e-4),  # Table 6 has it after 7 epochs too
}


def jft_row(model: str) -> JftRow:
    """The row of Table 3 for a model, whatever it is called; B/16's for models that the table does not have."""
    config = model_config(model)
    for name, row in JFT.items():
        if model_config(name) == config:
            return row
    row = JFT["B/16"]
    log.info(f"Table 3 has no row for {model} on JFT: using B/16's, {row.epochs} epochs at learning rate {row.lr:g}")
    return row


def nearest_image_size(model: ModelConfig, size: Size) -> Size:
    """The size nearest to this one that the model can take: a multiple of its patches on both sides."""
    nearest = nearest_multiple(size, model.token_size())
    if nearest != size:
        log.info(f"{size} is not a multiple of the model's {model.token_size()} patches: using {nearest} images")
    return nearest


def pretraining_model(model: str, bias: float, dropout: float) -> ModelConfig:
    """A model for pre-training: a tanh head for transformers, dropout after every dense layer except qkv."""
    config = model_config(model)
    if not isinstance(config, Vit):
        return model_config(config, {"head.bias": bias})
    drops = {f"{part}.dropout": dropout for part in ("tokens", "mixer", "mlp")}
    return model_config(config, {"head": "tanh", "head.bias": bias} | drops)


def paper_imagenet(model: str = "B/16") -> Recipe:
    """Table 3: any model on ImageNet from scratch.

    Run:     vitral train imagenet/ --recipe paper_imagenet
    Takes:   not measured here
    Reaches: not measured here
    """
    return Recipe(
        name="paper_imagenet",
        model=pretraining_model(model, bias=0.0, dropout=0.1),
        length=Epochs(epochs=300),
        batch_size=4096,
        optimizer=AdamW(lr=3e-3, weight_decay=0.3),
        schedule=Cosine(warmup=10_000),
    )


def paper_imagenet21k(model: str = "B/16") -> Recipe:
    """Table 3: B and L on ImageNet-21k, with a sigmoid loss since images have several true labels. No clipping.

    Run:     vitral train imagenet21k/ --recipe paper_imagenet21k
    Takes:   not measured here
    Reaches: not measured here
    """
    return Recipe(
        name="paper_imagenet21k",
        model=pretraining_model(model, bias=-10.0, dropout=0.1),
        task=Classify(loss=Sigmoid()),
        length=Epochs(epochs=90),
        batch_size=4096,
        optimizer=AdamW(lr=1e-3, weight_decay=0.03),
        schedule=Linear(warmup=10_000, end=END_LR / 1e-3),
        clip="none",
    )


def paper_jft(model: str = "B/16") -> Recipe:
    """Table 3: ViT, ResNet and hybrid on JFT-300M, which is not public; for other datasets of that size. No clipping.

    Run:     vitral train shards/ --recipe paper_jft --model L/16
    Takes:   not measured here
    Reaches: not measured here
    """
    row = jft_row(model)
    return Recipe(
        name="paper_jft",
        model=pretraining_model(model, bias=-10.0, dropout=0.0),
        task=Classify(loss=Sigmoid()),
        length=Epochs(epochs=row.epochs),
        batch_size=4096,
        optimizer=AdamW(lr=row.lr, weight_decay=0.1),
        schedule=Linear(warmup=10_000, end=END_LR / row.lr),
        clip="none",
    )


def paper_masked(model: str = "B/16") -> Recipe:
    """Appendix B.1.2: masked patch prediction without labels. Gains flatten after 100,000 of the million steps.

    Run:     vitral train photos/ --recipe paper_masked
    Takes:   not measured here
    Reaches: not measured here
    """
    return Recipe(
        name="paper_masked",
        model=model_config(model),
        task=MaskedPatches(),
        length=Steps(steps=1_000_000),
        batch_size=4096,
        optimizer=AdamW(lr=2e-4, weight_decay=0.1),
        schedule=Cosine(warmup=10_000),
    )


def finetune_recipe(name: str, model: str, steps: int, warmup: int, held_out: float) -> Recipe:
    """The settings that all rows of Table 4 share; the learning rate is the one that every row's grid has."""
    config = model_config(model)
    return Recipe(
        name=name,
        data=DataConfig(split=StratifiedSplit(fraction=held_out)),
        model=model_config(config, image_size=nearest_image_size(config, FINETUNE_SIZE)),
        length=Steps(steps=steps),
        batch_size=512,
        optimizer=Sgd(lr=0.01),
        schedule=Cosine(warmup=warmup),
    )


def finetune_imagenet(model: str = "B/16") -> Recipe:
    """Table 4 on ImageNet: the best learning rate of 0.003, 0.01, 0.03 and 0.06 on 1% of the training images.

    Table 2 uses 512 pixels (L/16) or 518 (H/14) and averaged weights: --image-size 518 --set average=ema.

    Run:     vitral train imagenet/ --recipe finetune_imagenet --weights WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_imagenet", model, steps=20_000, warmup=500, held_out=0.01)


def finetune_cifar(model: str = "B/16") -> Recipe:
    """Table 4 on CIFAR-10 and CIFAR-100: the best learning rate of 0.001, 0.003, 0.01 and 0.03 on 2%.

    Run:     vitral train cifar100 --recipe finetune_cifar --weights WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_cifar", model, steps=10_000, warmup=500, held_out=0.02)


def finetune_flowers(model: str = "B/16") -> Recipe:
    """Table 4 on Oxford Flowers and Pets: the best learning rate of 0.001, 0.003, 0.01 and 0.03 on 10%.

    Run:     vitral train flowers/ --recipe finetune_flowers --weights WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_flowers", model, steps=500, warmup=100, held_out=0.1)


def finetune_vtab(model: str = "B/16") -> Recipe:
    """Table 4 on a task of VTAB with 1,000 images: one learning rate and 2,500 steps for all tasks.

    Run:     vitral train caltech101/ --recipe finetune_vtab --weights WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_vtab", model, steps=2_500, warmup=500, held_out=0.2)
