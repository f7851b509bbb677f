"""The augmentations of AugReg, "How to train your ViT?" (arXiv 2106.10270), by its names for them."""

from typing import NamedTuple

from vitral.data.transforms.augment import Augment
from vitral.data.transforms.mix import Mixing, Mixup, NoMixing
from vitral.data.transforms.randaugment import RandAugment


class Preset(NamedTuple):
    """What is done to each training image, in turn, and then to each batch."""

    augment: tuple[Augment, ...]
    mixing: Mixing


def _two_layers(magnitude: int) -> tuple[Augment, ...]:
    return (RandAugment(layers=2, magnitude=magnitude),)


# light1 is not light: at magnitude 0 images are inverted, darkened to a tenth or left with one bit.
AUGREG = {
    "none": Preset((), NoMixing()),
    "light1": Preset(_two_layers(0), NoMixing()),
    "light2": Preset(_two_layers(10), Mixup(alpha=0.2)),
    "medium1": Preset(_two_layers(15), Mixup(alpha=0.2)),
    "medium2": Preset(_two_layers(15), Mixup(alpha=0.5)),
    "strong1": Preset(_two_layers(20), Mixup(alpha=0.5)),
    "strong2": Preset(_two_layers(20), Mixup(alpha=0.8)),
}
