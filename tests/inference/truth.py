"""Models with weights that leave nothing at zero, and what they answer in float64.  B images, K numbers."""

from copy import deepcopy

import numpy as np
import torch

from tests.models.variants import VARIANTS, VITS
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import IMAGENET, Normalize, Preprocessing
from vitral.inference.engines.engine import FloatArray, OutputKind, PixelBatch
from vitral.inference.graph.graph import Graph, build_graph
from vitral.models import Resnet, Vit
from vitral.models.head import NoHead
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel

GRAY = Normalize(mean=(0.3,), std=(0.4,))

# Those whose graphs differ: how a model begins, what training keeps and how positions are resampled leave no trace.
GRAPHS: dict[str, Vit | Resnet] = {
    name: config
    for name, config in VARIANTS.items()
    if not name.startswith(("initial-", "memory-", "learned1d-bicubic", "learned1d-antialias", "learned1d-corners"))
}
assert "resnet" in GRAPHS
assert set(VITS) - set(GRAPHS)


def loaded(config: Vit | Resnet, scaling: Normalize | None = None) -> LoadedModel:
    """A model that is far from its beginning, with colors of its own where it has any."""
    torch.manual_seed(0)
    model = config.build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    needs = Preprocessing(
        image_size=config.image_size,
        decoding=Decoding(channels=config.channels),
        normalize=scaling or (IMAGENET if config.channels == 3 else GRAY),
    )
    classes = () if isinstance(config.head, NoHead) else tuple("abcdefgh"[: config.head.num_classes])
    return LoadedModel(
        model, Bundle(model=config, task="classify" if classes else "features", preprocessing=needs, classes=classes)
    )


def pixels(source: LoadedModel, images: int = 3) -> PixelBatch:
    needs = source.bundle.preprocessing
    shape = (images, *needs.image_size, needs.decoding.channels)
    return np.random.default_rng(1).integers(256, size=shape, dtype=np.uint8)  # (B, H, W, C)


def answer_of(source: LoadedModel) -> OutputKind:
    """Logits where the model has any."""
    return "logits" if source.bundle.classes else "features"


def graph(config: Vit | Resnet) -> tuple[LoadedModel, Graph]:
    source = loaded(config)
    return source, build_graph(source, answer_of(source))


@torch.no_grad()
def truth(source: LoadedModel, images: PixelBatch, answer: OutputKind = "logits") -> FloatArray:
    """What the model itself makes of them, scaled as the formula says, all in float64."""
    scaling = source.bundle.preprocessing.normalize
    mean, deviation = (torch.tensor(each, dtype=torch.float64) for each in (scaling.mean, scaling.std))
    scaled = (torch.from_numpy(images).double() / 255 - mean) / deviation  # (B, H, W, C)
    model = deepcopy(source.model).double()
    whole = answer == "logits" or isinstance(source.bundle.model.head, NoHead)
    see = model if whole else model.forward_pooled
    return see(scaled.permute(0, 3, 1, 2)).float().numpy()  # (B, K)
