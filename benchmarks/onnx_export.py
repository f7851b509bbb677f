"""`python -m benchmarks.onnx_export [MODEL]`: our ONNX tracer against torch's exporter and OpenVINO's converter.

All start from the same inference graph. Printed are the seconds (of processor time) to make each model, and the time of
a run relative to ours under ONNX Runtime and OpenVINO, interleaved. Needs `pip install -c constraints.txt onnxscript`.
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch

from vitral.core.imports import load_onnxruntime, load_openvino
from vitral.inference.engines.onnxruntime import make_session
from vitral.inference.graph.graph import Graph, build_graph
from vitral.inference.graph.onnx import lower_for_onnx, to_onnx
from vitral.runs.bench_worker import load_model

OURS = "vitral.inference.graph.onnx"
ROUNDS = 40
TOLERANCE = 1e-4


def with_ours(graph: Graph) -> bytes:
    return to_onnx(graph).SerializeToString()


def with_torch_onnx(graph: Graph) -> bytes:
    pixels, batch = sample(graph)
    program = torch.onnx.export(
        graph, (pixels,), dynamo=True, dynamic_shapes=batch, input_names=["pixels"], opset_version=20, verbose=False
    )
    assert program is not None
    return program.model_proto.SerializeToString()


def with_openvino(graph: Graph) -> Any:
    pixels, batch = sample(graph)
    return load_openvino().convert_model(torch.export.export(graph, (pixels,), dynamic_shapes=batch))


def sample(graph: Graph) -> tuple[torch.Tensor, Any]:
    pixels = torch.zeros(2, *graph.image_size, graph.channels, dtype=torch.uint8)
    return pixels, ({0: torch.export.Dim("batch")},)


MAKERS: dict[str, Callable[[Graph], Any]] = {
    OURS: with_ours,
    "torch.onnx.export(dynamo=True)": with_torch_onnx,
    "openvino.convert_model": with_openvino,
}


def run_session(session: Any, pixels: np.ndarray) -> np.ndarray:
    return session.run(None, {"pixels": pixels})[0]


def run_compiled(model: Any, pixels: np.ndarray) -> np.ndarray:
    return model([pixels])[0]


def runners(
    models: dict[str, Any], pixels: np.ndarray, threads: int
) -> dict[tuple[str, str], Callable[[], np.ndarray]]:
    """A run of each model under each runtime that takes it."""
    found: dict[tuple[str, str], Callable[[], np.ndarray]] = {}
    core = load_openvino().Core()
    for name, model in models.items():
        if isinstance(model, bytes):
            session = make_session(model, threads)
            found["onnxruntime", name] = partial(run_session, session, pixels)
        read = core.read_model(model) if isinstance(model, bytes) else model.clone()
        read.reshape(list(pixels.shape))
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        compiled = core.compile_model(read, "CPU", settings)
        found["openvino", name] = partial(run_compiled, compiled, pixels)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="Ti/16")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    load_onnxruntime()
    graph, models = lower_for_onnx(build_graph(load_model(given.model)), "float32"), {}
    for name, make in MAKERS.items():
        started = process_time()
        with torch.no_grad():
            models[name] = make(graph)
        print(f"{name}: {process_time() - started:.2f} s to make", flush=True)
    for batch in (1, 8):
        pixels = np.random.default_rng(0).integers(256, size=(batch, *graph.image_size, 3), dtype=np.uint8)
        runs = runners(models, pixels, given.threads)
        expected = runs["onnxruntime", OURS]()
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
        for key, run in runs.items():
            assert np.abs(run() - expected).max() < TOLERANCE, key
        for _ in range(ROUNDS):
            for key, run in runs.items():
                started = process_time()
                run()
                seconds[key].append(process_time() - started)
        for (runtime, name), times in seconds.items():
            ratio = median(times) / median(seconds[runtime, OURS])
            print(f"batch {batch}, {runtime}, {name}: {ratio:.2f} x the time of ours", flush=True)


if __name__ == "__main__":
    main()
