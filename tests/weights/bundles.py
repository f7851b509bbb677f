"""Small bundles to write and read."""

from typing import Any

import torch
from torch import Tensor

from tests.models.variants import small
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models import LinearHead, Mlp, NoHead, Resnet, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel

CLASSES = ("cat", "dog", "Ünlü", "a|b")
TINY = small(width=8, depth=1, mlp=Mlp(ratio=1), head=LinearHead(num_classes=4))


def bundle_of(model: Vit | Resnet = TINY, **fields: Any) -> Bundle:
    """The bundle of a model that tells as many of the classes as its head has, or none."""
    classes = () if isinstance(model.head, NoHead) else CLASSES[: model.head.num_classes]
    given: dict[str, Any] = {
        "model": model,
        "task": "classify" if classes else "masked_patches",
        "preprocessing": Preprocessing(image_size=model.image_size, decoding=Decoding(channels=model.channels)),
        "classes": classes,
    }
    return Bundle(**(given | fields))


def tensors_of(model: Vit | Resnet = TINY, seed: int = 0) -> dict[str, Tensor]:
    """Weights of which no two are alike, but for one that layers share."""
    rng, found = torch.Generator().manual_seed(seed), dict[int, Tensor]()
    own = model.build_empty().state_dict(keep_vars=True)
    for weight in own.values():
        if id(weight) not in found:
            found[id(weight)] = torch.randn(weight.shape, generator=rng)
    return {name: found[id(weight)] for name, weight in own.items()}


def loaded(model: Vit | Resnet = TINY, **fields: Any) -> LoadedModel:
    frame = model.build_empty()
    frame.load_weights(tensors_of(model))
    return LoadedModel(frame.eval(), bundle_of(model, **fields))


def square(side: int) -> Size:
    return Size(side, side)
