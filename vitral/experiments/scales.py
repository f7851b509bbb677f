"""The scales of an experiment: `tiny` for minutes, `small` for hours, `full` as the paper has it.

Arms of `tiny` and `small` differ from one recipe each, a plain ViT for images of 32 pixels, so that experiments can be
compared with each other.
"""

from math import ceil
from typing import NamedTuple

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.datasets.named import GENERATED, NAMED_DATASETS
from vitral.data.datasets.source import SAMPLE
from vitral.data.transforms.crop import RandomCrop, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.attention import Attention
from vitral.models.embed import Hybrid, Patches
from vitral.models.mlp import Mlp
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.paper import paper_jft
from vitral.recipes.recipe import DataConfig, Epochs, Images, Recipe, Steps
from vitral.recipes.small import CIFAR_NORMALIZE, FASHION_NORMALIZE
from vitral.runs.request import open_samples
from vitral.training.optimizers import AdamW
from vitral.training.schedules import Cosine

HELD_OUT = 0.1  # of the training images, on which learning rates are chosen
GRAY = (SAMPLE, "fashion-mnist", "mnist", "digits", *GENERATED)
ALL_STEPS = 1e6  # epochs between two evaluations: only the last weights are evaluated, so no evaluation chooses any
# Training images of the originals. At `full` an arm with such a name as its data reads that folder of `--data`.
IMAGES = {"imagenet": 1_281_167, "imagenet21k": 14_197_122, "jft": 303_000_000, "cifar": 50_000}  # for training


class Setup(NamedTuple):
    """What all arms share at a scale."""

    recipe: Recipe
    rates: tuple[float, ...]  # that are tried for every arm; a single one is taken as it is
    seeds: int
    images: int = 0  # training images of the original, which is planned without its data; else those of the data


def standard_setup(scale: str, data: str, root: str) -> Setup:
    """The usual recipe of a scale; `full` is the paper's pre-training on JFT-300M."""
    if scale == "full":
        recipe = paper_jft()
        return Setup(with_data(recipe, data, root), (recipe.optimizer.lr,), 1, IMAGES["jft"])
    tiny = scale == "tiny"
    where = data or (SAMPLE if tiny else find_small())
    recipe = tiny_recipe() if tiny else small_recipe()
    rates = (1e-3, 4e-3) if tiny else (5e-4, 1e-3, 2e-3, 4e-3)
    return Setup(with_data(for_images(recipe, where), where, root), rates, 3)


def tiny_recipe() -> Recipe:
    """A ViT of 16 patches, 240 steps: 10 CPU seconds with the start of the process."""
    return Recipe(
        name="paper_tiny",
        data=DataConfig(hold_out=HELD_OUT),
        model=plain_vit(patch=8, width=64, depth=4),
        images=Images(crop=Resize()),
        length=Steps(steps=240),
        batch_size=100,
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
        schedule=Cosine(warmup=0.1),
        eval_every=ALL_STEPS,
    )


def small_recipe() -> Recipe:
    """A ViT of 64 patches, 3,000 steps, with shifts by 2 pixels."""
    return tiny_recipe().model_copy(
        update={
            "name": "paper_small",
            "model": plain_vit(patch=4, width=96, depth=6),
            "images": Images(crop=RandomCrop(padding=2)),
            "length": Steps(steps=3_000),
        }
    )


def plain_vit(patch: int, width: int, depth: int) -> Vit:
    """The paper's model at a small size, for gray images of 32 pixels."""
    return Vit(
        image_size=Size(32, 32),
        channels=1,
        width=width,
        depth=depth,
        stem=Patches(patch=Size(patch, patch)),
        mixer=Attention(heads=width // 16),
        mlp=Mlp(ratio=2.0),
    )


def for_images(recipe: Recipe, data: str) -> Recipe:
    """The recipe for the channels and the brightness of a dataset; photos of any size are cropped at random."""
    gray, crop, normalize = data in GRAY, recipe.images.crop, CENTERED
    if gray:
        normalize = FASHION_NORMALIZE
        crop = crop.model_copy(update={"flip": False}) if isinstance(crop, RandomCrop) else crop
    elif data.startswith("cifar"):
        normalize = CIFAR_NORMALIZE
    else:
        crop = RandomResizedCrop(area=(0.3, 1.0))
    images = recipe.images.model_copy(update={"normalize": normalize, "crop": crop})
    model = recipe.model.model_copy(update={"channels": 1 if gray else 3})
    return recipe.model_copy(update={"images": images, "model": model})


def with_data(recipe: Recipe, data: str, root: str) -> Recipe:
    """The recipe for this data, with its other settings of the data."""
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": data, "root": root})})


def find_small() -> str:
    """CIFAR-10 where it is on this machine, else Fashion-MNIST."""
    for name in ("cifar10", "fashion-mnist"):
        try:
            open_samples(Recipe(data=DataConfig(path=name)))
        except DataError:
            continue
        return name
    hint = f"{NAMED_DATASETS['fashion-mnist'].how_to_get} into ./data, or name other data: --data photos/"
    message = "the scale small needs CIFAR-10 or Fashion-MNIST, and neither was found"
    raise DataError(message, code="data.not_found", where="--data", hint=hint)


def count_steps(recipe: Recipe, images: int) -> int:
    """The steps of a recipe that is given in steps or epochs."""
    length = recipe.length
    assert isinstance(length, Steps | Epochs), "an experiment counts steps or epochs"
    return length.steps if isinstance(length, Steps) else ceil(length.epochs * images / recipe.batch_size)


def resnet(scale: str) -> Resnet:
    """The BiT ResNet that is compared with the ViT of a scale, for gray images; data with colors sets its channels."""
    if scale == "full":
        return Resnet()
    return Resnet(image_size=Size(32, 32), channels=1, layers=(1, 1) if scale == "tiny" else (2, 2, 2), root=32)


def hybrid(scale: str) -> Hybrid:
    """The stem of the hybrid of a scale: a ResNet with as many cells as the ViT has patches."""
    if scale == "full":
        return Hybrid()
    return Hybrid(layers=(1, 1) if scale == "tiny" else (1,), root=32)
