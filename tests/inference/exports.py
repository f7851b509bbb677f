"""Small models with outputs that differ between the bundled images, and such images."""

from functools import cache
from pathlib import Path

import numpy as np
import torch

from vitral.core.config import Size, parse_settings
from vitral.data.datasets.named import CLASSES, open_sample
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.exporters.export import ExportSource
from vitral.exporters.targets import BatchSize, ExportPlan, InputSize
from vitral.exporters.verify import (
    ExportImages,
    ReferenceEngine,
    ReferenceOutputs,
    VerificationImages,
    load_pixels,
    reference_outputs,
    sample_evenly,
)
from vitral.inference.engines.engine import Precision
from vitral.inference.graph.graph import Graph, build_graph
from vitral.models import NoHead
from vitral.weights.bundle import Bundle, write_bundle
from vitral.weights.create import create_model
from vitral.weights.load import LoadedModel

SETTINGS = ("image_size=24x32", "stem.patch=8", "width=32", "depth=2", "mixer.heads=2", "head.num_classes=10")
COLORS = Normalize(mean=(0.2, 0.4, 0.6), std=(0.2, 0.3, 0.4))
SCALES = (2.0, 0.7)  # of the fresh weights of the head, and of the layers


def loaded(channels: int = 3, view: EvalCropConfig = Resize(), head: bool = True) -> LoadedModel:  # noqa: B008, frozen
    """A model with fresh weights, large enough that its answers differ."""
    torch.manual_seed(0)
    model = create_model(
        "Ti/16", settings=parse_settings([*SETTINGS, f"channels={channels}", *([] if head else ["head=none"])])
    ).eval()
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
    return LoadedModel(
        model, Bundle(model=config, task="classify" if named else "features", preprocessing=needs, classes=named)
    )


def bundled(folder: Path) -> Path:
    """Such a model in a folder."""
    model, bundle = loaded()
    write_bundle(folder / "tiny", bundle, model.state_dict(), "a card")
    return folder / "tiny"


def source(channels: int = 3, view: EvalCropConfig = Resize(), head: bool = True) -> ExportSource:  # noqa: B008, frozen
    return ExportSource(loaded(channels, view, head), "0" * 64)


@cache
def export_images(verification: int = 40, calibration: int = 16) -> ExportImages:
    """Some of the bundled images."""
    samples = open_sample()
    items = sample_evenly(samples.of("test"), verification)
    labels = tuple(item.label for item in items)
    return ExportImages("bundled images", samples, items, labels, sample_evenly(samples.of("train"), calibration))


def sure(found: LoadedModel, verification: int = 40) -> ExportImages:
    """Those of the bundled images by which the model is least in doubt: bytes will not sway it."""
    some = export_images(300)
    answers = np.sort(
        ReferenceEngine(found).run(load_pixels(some.samples, some.verification, found.bundle.preprocessing))
    )  # (N, K)
    places = np.argsort(answers[:, -2] - answers[:, -1])[:verification].tolist()
    items, labels = (tuple(each[place] for place in places) for each in (some.verification, some.labels))
    return some._replace(verification=items, labels=labels)


def plan(
    found: LoadedModel,
    batch_size: BatchSize = "dynamic",
    input_size: InputSize | None = None,
    metadata: dict[str, str] | None = None,
    precision: Precision = "float32",
) -> ExportPlan:
    needs = found.bundle.preprocessing
    graph: Graph = build_graph(found, "logits" if found.bundle.classes else "features")
    return ExportPlan(graph, needs, batch_size, input_size or needs.image_size, metadata or {}, precision)


def truth(found: LoadedModel, images: VerificationImages) -> ReferenceOutputs:
    return reference_outputs(found, images, images.source.labels)
