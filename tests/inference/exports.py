"""Small models that have something to say of the bundled images, and albums of those."""

from functools import cache
from pathlib import Path

import numpy as np
import torch

from vitral.core.config import Size
from vitral.data.datasets.named import CLASSES, open_sample
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.exporters.export import Source
from vitral.exporters.targets import Batch, Incoming, Plan
from vitral.exporters.verify import Album, Expected, Original, Sitting, expected, seen, spread
from vitral.inference.engines.engine import Precision
from vitral.inference.graph.graph import Graph, graph_of
from vitral.models import NoHead, build
from vitral.weights.bundle import Bundle, write_bundle
from vitral.weights.load import Loaded

SETTINGS = ("image_size=24x32", "stem.patch=8", "width=32", "depth=2", "mixer.heads=2", "head.num_classes=10")
COLORS = Normalize(mean=(0.2, 0.4, 0.6), std=(0.2, 0.3, 0.4))
SCALES = (2.0, 0.7)  # of the fresh weights of the head, and of the layers


def loaded(channels: int = 3, view: EvalCropConfig = Resize(), head: bool = True) -> Loaded:  # noqa: B008, frozen
    """A model with fresh weights, large enough that its answers differ."""
    torch.manual_seed(0)
    model = build("Ti/16", *SETTINGS, f"channels={channels}", *([] if head else ["head=none"])).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=SCALES[not name.startswith("head")] * weight.shape[-1] ** -0.5)
    config = model.config
    needs = Preprocessing(
        image_size=Size(24, 32),
        decoding=Decoding(channels=channels),
        crop=view,
        normalize=COLORS if channels == 3 else Normalize(),
    )
    named = () if isinstance(config.head, NoHead) else CLASSES
    return Loaded(
        model, Bundle(model=config, task="classify" if named else "features", preprocessing=needs, classes=named)
    )


def bundled(folder: Path) -> Path:
    """Such a model in a folder."""
    model, bundle = loaded()
    write_bundle(folder / "tiny", bundle, model.state_dict(), "a card")
    return folder / "tiny"


def source(channels: int = 3, view: EvalCropConfig = Resize(), head: bool = True) -> Source:  # noqa: B008, frozen
    return Source(loaded(channels, view, head), "0" * 64)


@cache
def album(judging: int = 40, calibrating: int = 16) -> Album:
    """Some of the bundled images."""
    samples = open_sample()
    items = spread(samples.of("test"), judging)
    labels = tuple(item.label for item in items)
    return Album("bundled images", samples, items, labels, spread(samples.of("train"), calibrating))


def sure(found: Loaded, judging: int = 40) -> Album:
    """Those of the bundled images by which the model is least in doubt: bytes will not sway it."""
    some = album(300)
    answers = np.sort(Original(found).run(seen(some.samples, some.judging, found.bundle.preprocessing)))  # (N, K)
    places = np.argsort(answers[:, -2] - answers[:, -1])[:judging].tolist()
    items, labels = (tuple(each[place] for place in places) for each in (some.judging, some.labels))
    return some._replace(judging=items, labels=labels)


def plan(
    found: Loaded,
    batch: Batch = "dynamic",
    incoming: Incoming | None = None,
    facts: dict[str, str] | None = None,
    precision: Precision = "float32",
) -> Plan:
    needs = found.bundle.preprocessing
    graph: Graph = graph_of(found, "logits" if found.bundle.classes else "features")
    return Plan(graph, needs, batch, incoming or needs.image_size, facts or {}, precision)


def truth(found: Loaded, sitting: Sitting) -> Expected:
    return expected(found, sitting, sitting.album.labels)
