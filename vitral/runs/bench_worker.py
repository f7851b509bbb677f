"""The timing worker of vitral's engines: `python -m vitral.runs.bench_worker NAME MODEL THREADS`.

Names are `vitral openvino`, `vitral openvino int8`, `vitral openvino merging 8` and so on.
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
from vitral.inference.engines.eager import PackedLinear, can_pack
from vitral.inference.engines.engine import Engine, PixelBatch
from vitral.inference.engines.onnxruntime import OnnxRuntimeEngine
from vitral.inference.engines.openvino import OpenVinoEngine
from vitral.inference.graph.graph import Graph, build_graph
from vitral.inference.graph.layers import Affine
from vitral.inference.graph.token_merging import Merging, NoMerging, TokenMerging
from vitral.models.head import NoHead
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.runs.bench import BASELINE, BASELINE_SIZE, mean_seconds, serve_timings
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel, load

CALIBRATION_IMAGES = 8  # images
KINDS = {kind.model_fields["kind"].default: kind for kind in union_members(EngineConfig)}
NAME = re.compile(r"vitral (?P<kind>[a-z]+)(?P<int8> int8)?( merging (?P<per_layer>[0-9]+))?")


def load_model(model: str) -> LoadedModel:
    """A bundle by path, or a model by name: with random weights, and the erf GELU that peers have."""
    if Path(model).expanduser().exists():
        return load(model, verify_files=False)  # the process that started this one has loaded it too
    config = model_config(model)
    if isinstance(config, Vit):
        config = model_config(config, {"mlp.activation": "gelu"})
    assert not isinstance(config.head, NoHead)
    needs = Preprocessing(image_size=config.image_size, decoding=Decoding(channels=config.channels))
    classes = tuple(map(str, range(config.head.num_classes)))
    bundle = Bundle(model=config, task="classify", preprocessing=needs, classes=classes)
    return LoadedModel(config.build().eval(), bundle)


def build_engine(name: str, model: LoadedModel, threads: int, calibrating: PixelBatch) -> Engine:
    """The engine of that name; int8 layers are calibrated on images (B, H, W, C)."""
    found = NAME.fullmatch(name)
    assert found, name
    merging: Merging = TokenMerging(per_layer=int(found["per_layer"])) if found["per_layer"] else NoMerging()
    graph = build_graph(model, "features" if isinstance(model.bundle.model.head, NoHead) else "logits", merging)
    if found["int8"]:
        return build_int8_engine(graph, found["kind"], threads, calibrating)
    return KINDS[found["kind"]]().build(graph, threads)


def build_int8_engine(graph: Graph, kind: str, threads: int, calibrating: PixelBatch) -> Engine:
    """The graph with every supported layer in int8."""
    from vitral.exporters.quantize import measure_ranges, quantizable_layers, quantize_layers
    from vitral.inference.graph.onnx import lower_for_onnx, to_onnx

    core = to_onnx(lower_for_onnx(graph, "int8"))
    layers = quantizable_layers(core)
    if not layers:
        raise ConfigError("int8 quantizes the layers of blocks, but this model has none", code="config.unsupported")
    if kind == "onnxruntime":  # faster with dynamic ranges
        return OnnxRuntimeEngine(quantize_layers(core, layers, None).SerializeToString(), graph.outputs, threads)
    model = quantize_layers(core, layers, measure_ranges(core, layers, calibrating)).SerializeToString()
    return OpenVinoEngine(model, graph.outputs, threads)


def random_pixels(bundle: Bundle, images: int) -> PixelBatch:
    """Random pixels of the model's image size."""
    shape = (images, *bundle.preprocessing.image_size, bundle.model.channels)
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def baseline_calls() -> list[Callable[[], object]]:
    """The baseline matmul, by each of the two libraries that torch has for it."""
    first, second = (torch.randn(BASELINE_SIZE, BASELINE_SIZE) for _ in range(2))
    ways: list[Callable[[], object]] = [partial(torch.mm, first, second, out=torch.empty(BASELINE_SIZE, BASELINE_SIZE))]
    if can_pack():
        packed = PackedLinear(Affine(second.mT, torch.zeros(BASELINE_SIZE)).to_linear())
        ways.append(torch.inference_mode()(partial(packed, first)))
    return ways


def prepare_timing(name: str, model: str, threads: int) -> Callable[[str], float]:
    """A function from a line such as `8 0.5` (batch size, seconds) to the seconds of a call."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name == BASELINE:
        ways = baseline_calls()
        return lambda line: min(mean_seconds(way, float(line.split()[1]) / len(ways)) for way in ways)
    own = load_model(model)
    engine = build_engine(name, own, threads, random_pixels(own.bundle, CALIBRATION_IMAGES))
    pixels: dict[str, PixelBatch] = {}

    def measure(line: str) -> float:
        batch, least = line.split()
        if batch not in pixels:
            pixels[batch] = random_pixels(own.bundle, int(batch))
        return mean_seconds(partial(engine.run, pixels[batch]), float(least))

    return measure


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    keep_freed_memory()
    serve_timings(partial(prepare_timing, sys.argv[1], sys.argv[2], int(sys.argv[3])))
