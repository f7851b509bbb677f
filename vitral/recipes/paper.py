"""The paper's own training (arXiv 2010.11929): Table 3 from scratch, Table 4 from weights.

What the tables leave out is as in google-research/vision_transformer and its maintainers' answers.
"""

from typing import NamedTuple

from vitral.core.config import Size
from vitral.data.datasets.split import Stratified
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.recipes.recipe import DataConfig, Epochs, ModelConfig, Recipe, Steps
from vitral.tasks.classify import Classify, Sigmoid
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.training.optimizers import AdamW, Sgd
from vitral.training.schedules import Cosine, Linear

END_LR = 1e-5  # the rate at the end of a linear decay


class JftRow(NamedTuple):
    """A row of Table 3 for JFT-300M."""

    epochs: int
    rate: float


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


def pretraining_model(model: str, bias: float, dropout: float) -> ModelConfig:
    """A model for pre-training: tanh in the head of a transformer, dropout after every dense layer but qkv."""
    config = model_config(model)
    if not isinstance(config, Vit):
        return model_config(config, f"head.bias={bias}")
    drops = [f"{part}.dropout={dropout}" for part in ("tokens", "mixer", "mlp")]
    return model_config(config, "head=tanh", f"head.bias={bias}", *drops)


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
    """Table 3: B and L on ImageNet-21k, where a label is one of several that would be right.

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
    )


def paper_jft(model: str = "B/16") -> Recipe:
    """Table 3: ViT, ResNet and hybrid on JFT-300M, which is Google's own; for any other set of its size.

    Run:     vitral train shards/ --recipe paper_jft --model L/16
    Takes:   not measured here
    Reaches: not measured here
    """
    row = JFT.get(model, JFT["B/16"])
    return Recipe(
        name="paper_jft",
        model=pretraining_model(model, bias=-10.0, dropout=0.0),
        task=Classify(loss=Sigmoid()),
        length=Epochs(epochs=row.epochs),
        batch_size=4096,
        optimizer=AdamW(lr=row.rate, weight_decay=0.1),
        schedule=Linear(warmup=10_000, end=END_LR / row.rate),
    )


def paper_masked(model: str = "B/16") -> Recipe:
    """Appendix B.1.2: masked patches on images without labels. Gains flatten after 100,000 of the million steps.

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


def finetune_recipe(name: str, model: str, steps: int, warmup: int, held: float) -> Recipe:
    """Table 4 but for the steps: the rate is the one that is in the grid of every set."""
    return Recipe(
        name=name,
        data=DataConfig(split=Stratified(fraction=held)),
        model=model_config(model, f"image_size={Size(384, 384)}"),
        length=Steps(steps=steps),
        batch_size=512,
        optimizer=Sgd(lr=0.01),
        schedule=Cosine(warmup=warmup),
    )


def finetune_imagenet(model: str = "B/16") -> Recipe:
    """Table 4 on ImageNet, best of the rates 0.003, 0.01, 0.03 and 0.06 on 1 % of the training images.

    Table 2 has it at 512 pixels (L/16) or 518 (H/14), on the average: --set average=ema.

    Run:     vitral train imagenet/ --recipe finetune_imagenet --from WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_imagenet", model, steps=20_000, warmup=500, held=0.01)


def finetune_cifar(model: str = "B/16") -> Recipe:
    """Table 4 on CIFAR-10 and CIFAR-100, best of the rates 0.001, 0.003, 0.01 and 0.03 on 2 %.

    Run:     vitral train cifar100 --recipe finetune_cifar --from WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_cifar", model, steps=10_000, warmup=500, held=0.02)


def finetune_flowers(model: str = "B/16") -> Recipe:
    """Table 4 on Oxford Flowers and Pets, best of the rates 0.001, 0.003, 0.01 and 0.03 on 10 %.

    Run:     vitral train flowers/ --recipe finetune_flowers --from WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_flowers", model, steps=500, warmup=100, held=0.1)


def finetune_vtab(model: str = "B/16") -> Recipe:
    """Table 4 on a task of VTAB, 1,000 images: one rate and 2,500 steps for all of them.

    Run:     vitral train caltech101/ --recipe finetune_vtab --from WEIGHTS
    Takes:   not measured here
    Reaches: not measured here
    """
    return finetune_recipe("finetune_vtab", model, steps=2_500, warmup=500, held=0.2)
