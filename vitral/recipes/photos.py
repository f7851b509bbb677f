"""A folder of photos of one's own, from weights that know pictures."""

from vitral.data.transforms.crop import RandomResizedCrop
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.recipe import Images, ImagesSeen, Recipe
from vitral.training.ema import Polyak
from vitral.training.finetune import LinearProbeThenFinetune
from vitral.training.optimizers import AdamW
from vitral.training.schedules import Cosine

LR_AT_WIDTH_1 = 0.06  # at a width of 1: 8e-5 for B, 1.6e-4 for S


def photos(model: str | Vit | Resnet = "S/16") -> Recipe:
    """Dozens to thousands of photos: chosen by itself with `--from`, which brings the model and how it sees images.

    The head is fitted to frozen features first, and a small rate, the smaller the wider the model is and the lower the
    layer, then bends those only as far as it helps: at the same rate for all layers, and from a head fitted without
    restraint, a few steps broke a ViT-S/14 whose last layers multiply what they add by up to 11. Mild crops keep the
    subject in the picture; the mean over the last quarter of the steps asks for no constant that would depend on how
    many images there are. What to change first: `lr`, `length.images`, `finetune=head` where features are as good as
    they     can get, `finetune=lora` where memory is short.

    Run:     vitral train photos/ --from WEIGHTS
    Takes:   1 minute on two cores of an AMD EPYC for 1,000 images of 32x32 pixels and a small ViT
    Reaches: 67.3 % there, where training from scratch reaches 60.8; 91.5 % with a ViT-S/14 on 243 photos of 2 classes
    """
    config = model_config(model)
    width, decay = (config.width, 0.75) if isinstance(config, Vit) else (config.out_channels(), 1.0)
    return Recipe(
        name="photos",
        model=config,
        finetune=LinearProbeThenFinetune(),
        images=Images(crop=RandomResizedCrop(area=(0.5, 1.0))),
        length=ImagesSeen(images=30_000, min_epochs=5, max_epochs=30),
        batch_size=32,
        optimizer=AdamW(lr=LR_AT_WIDTH_1 / width, weight_decay=0.05, layer_decay=decay),
        schedule=Cosine(warmup=0.2),
        clip=1.0,
        average=Polyak(start=0.75),
    )
