"""An engine of ours in a process of its own: `python -m vitral.runs.bench.worker NAME MODEL THREADS` takes turns.

A name is an engine's, such as `vitral openvino`, and may go on: `vitral openvino int8` and `vitral openvino merging 8`.
"""

import logging
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from vitral.core.config import union_members
from vitral.core.errors import ConfigError
from vitral.core.machine import keep_freed_memory
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.auto import EngineConfig
from vitral.inference.engines.eager import PackedLinear
from vitral.inference.engines.engine import Engine, PixelBatch
from vitral.inference.engines.onnxruntime import OnnxRuntimeEngine
from vitral.inference.engines.openvino import OpenVinoEngine
from vitral.inference.graph.folding import Affine
from vitral.inference.graph.graph import Graph, graph_of
from vitral.inference.graph.token_merging import Merging, NoMerging, TokenMerging
from vitral.models.head import NoHead
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.runs.bench.bench import BASELINE, BASELINE_SIZE
from vitral.runs.bench.subprocess_runner import mean_seconds, serve_timings
from vitral.weights.bundle import Bundle
from vitral.weights.load import Loaded, load

CALIBRATION_IMAGES = 8  # images
KINDS = {kind.model_fields["kind"].default: kind for kind in union_members(EngineConfig)}
NAME = re.compile(r"vitral (?P<kind>[a-z]+)(?P<int8> int8)?( merging (?P<per_layer>[0-9]+))?")


def load_model(model: str) -> Loaded:
    """A bundle by its path, or a model of the paper by name: with fresh weights, and the GELU that peers have."""
    if Path(model).expanduser().exists():
        return load(model)
    config = model_config(model)
    if isinstance(config, Vit):
        config = model_config(config, "mlp.gelu=erf")
    assert not isinstance(config.head, NoHead)
    needs = Preprocessing(image_size=config.image_size, decoding=Decoding(channels=config.channels))
    classes = tuple(map(str, range(config.head.num_classes)))
    bundle = Bundle(model=config, task="classify", preprocessing=needs, classes=classes)
    return Loaded(config.build().eval(), bundle)


def build_engine(name: str, model: Loaded, threads: int, calibrating: PixelBatch) -> Engine:
    """The engine of that name; layers in int8 have their ranges measured on images (B, H, W, C) to calibrate by."""
    found = NAME.fullmatch(name)
    assert found, name
    merging: Merging = TokenMerging(per_layer=int(found["per_layer"])) if found["per_layer"] else NoMerging()
    graph = graph_of(model, "features" if isinstance(model.bundle.model.head, NoHead) else "logits", merging)
    if found["build_int8_engine"]:
        return build_int8_engine(graph, found["kind"], threads, calibrating)
    return KINDS[found["kind"]]().build(graph, threads)


def build_int8_engine(graph: Graph, kind: str, threads: int, calibrating: PixelBatch) -> Engine:
    """The graph with every layer in bytes that can be."""
    from vitral.exporters.quantize import dynamic, layers_of, measured, static
    from vitral.exporters.targets import OnnxTarget
    from vitral.inference.graph.onnx import lowered, to_onnx

    core = to_onnx(lowered(graph, "int8"))
    layers = layers_of(core)
    if not layers:
        raise ConfigError("int8 is for the layers of blocks, and this model has none", code="config.unsupported")
    if kind == "onnxruntime":  # which is quicker when it measures ranges by itself
        return OnnxRuntimeEngine(dynamic(core, layers).SerializeToString(), threads)
    ranges = measured(core, layers, OnnxTarget().engine).ranges(calibrating)
    model = static(core, layers, ranges).SerializeToString()
    return OpenVinoEngine(model, graph.outputs, threads)


def random_pixels(bundle: Bundle, images: int) -> PixelBatch:
    """Pixels of the size that the model sees, at random: for where only the time matters."""
    shape = (images, *bundle.preprocessing.image_size, bundle.model.channels)
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def baseline_calls() -> list[Callable[[], object]]:
    """The product that all are held against, by each of the two libraries that torch has for it."""
    first, second = (torch.randn(BASELINE_SIZE, BASELINE_SIZE) for _ in range(2))
    ways: list[Callable[[], object]] = [partial(torch.mm, first, second, out=torch.empty(BASELINE_SIZE, BASELINE_SIZE))]
    if torch.backends.mkldnn.is_available():
        packed = PackedLinear(Affine(second.mT, torch.zeros(BASELINE_SIZE)).layer())
        ways.append(torch.inference_mode()(partial(packed, first)))
    return ways


def prepare_timing(name: str, model: str, threads: int) -> Callable[[str], float]:
    """A turn: seconds of a call, for a line such as `8 0.5`."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name == BASELINE:
        ways = baseline_calls()
        return lambda words: min(mean_seconds(way, float(words.split()[1]) / len(ways)) for way in ways)
    own = load_model(model)
    engine = build_engine(name, own, threads, random_pixels(own.bundle, CALIBRATION_IMAGES))
    pixels: dict[str, PixelBatch] = {}

    def turn(words: str) -> float:
        batch, least = words.split()
        if batch not in pixels:
            pixels[batch] = random_pixels(own.bundle, int(batch))
        return mean_seconds(partial(engine.run, pixels[batch]), float(least))

    return turn


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    keep_freed_memory()
    serve_timings(partial(prepare_timing, sys.argv[1], sys.argv[2], int(sys.argv[3])))
