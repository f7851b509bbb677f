"""The timing worker of other libraries: `python -m benchmarks.peers NAME MODEL THREADS`.

They run as their users would run them at their best: as many threads as ours and the same allocator, in float32, on
numbers that are scaled already, compiled with frozen weights. Needs the Python of `make bench`.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir

import numpy as np
import torch
from torch import nn

from benchmarks.model import Shape, build_huggingface, build_timm, build_vit_pytorch
from vitral.core.errors import ConfigError
from vitral.core.imports import load_openvino
from vitral.core.machine import keep_freed_memory
from vitral.inference.engines.onnxruntime import make_session as session_of
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import LinearHead
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.runs.bench import mean_seconds, serve_timings

Step = Callable[[], object]
Prepared = Callable[[int], Step]  # what a batch is answered by
OPSET = 20


def shape_of(model: str) -> Shape:
    """The shape of a plain model of the paper, by its name."""
    if Path(model).expanduser().exists():
        raise ConfigError(
            "other libraries are measured with models of the paper, by name", code="config.unsupported", where=model
        )
    config = model_config(model)
    assert isinstance(config, Vit)
    if not isinstance(config.stem, Patches):
        raise ConfigError("other libraries are measured with plain patches", code="config.unsupported", where=model)
    assert isinstance(config.mixer, Attention)
    assert isinstance(config.head, LinearHead)
    sides = config.image_size.height, config.stem.patch.height
    return Shape(*sides, config.width, config.depth, config.mixer.heads, config.head.num_classes)


def numbers(shape: Shape, batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, shape.image, shape.image, generator=torch.Generator().manual_seed(0))


def eager(build: Callable[[Shape], nn.Module], shape: Shape) -> Prepared:
    model = build(shape).eval()

    @torch.inference_mode()
    def run(images: torch.Tensor) -> None:
        model(images)

    return lambda batch: partial(run, numbers(shape, batch))


def compiled(shape: Shape) -> Prepared:
    """timm's model by torch.compile, anew for each batch."""
    torch._inductor.config.freezing = True
    model = torch.compile(build_timm(shape).eval(), dynamic=False)

    @torch.no_grad()  # weights are frozen outside of inference mode alone
    def run(images: torch.Tensor) -> None:
        model(images)

    return lambda batch: partial(run, numbers(shape, batch))


def exported(shape: Shape) -> bytes:
    """timm's model as torch exports it to ONNX; kept among the temporary files for the next process."""
    name = "-".join(map(str, (*shape, version("timm"), version("torch"))))
    file = Path(gettempdir()) / f"vitral-bench-timm-{name}.onnx"
    if not file.exists():
        torch.manual_seed(0)
        model, images = build_timm(shape).eval(), numbers(shape, 2)
        for part in [part for part in sys.modules if part.partition(".")[0] == "torchvision"]:
            del sys.modules[part]  # the stand-in has done its work, and the exporter would look into it
        sides = ({0: torch.export.Dim.DYNAMIC},)
        made = torch.onnx.export(
            model, (images,), dynamo=True, opset_version=OPSET, dynamic_shapes=sides, verbose=False
        )
        assert made is not None
        made.optimize()
        with NamedTemporaryFile(dir=file.parent, delete=False) as draft:
            draft.write(made.model_proto.SerializeToString())
        Path(draft.name).rename(file)
    return file.read_bytes()


def onnxruntime(shape: Shape, threads: int) -> Prepared:
    session = session_of(exported(shape), threads)
    name = session.get_inputs()[0].name
    return lambda batch: partial(session.run, None, {name: numbers(shape, batch).numpy()})


def onnxruntime_streams(shape: Shape, threads: int) -> Prepared:
    """A thread an image, which is how ours answers a batch."""
    session, pool = session_of(exported(shape), 1), ThreadPoolExecutor(threads)
    name = session.get_inputs()[0].name

    def prepared(batch: int) -> Step:
        images: np.ndarray = numbers(shape, batch).numpy()
        rows = [images[place : place + 1] for place in range(batch)]
        return lambda: list(pool.map(lambda row: session.run(None, {name: row}), rows))

    return prepared


def openvino(shape: Shape, threads: int, precision: str) -> Prepared:
    """In float32 unless told otherwise: where the processor has bfloat16, OpenVINO takes it without being asked.

    Compiled for each size of a batch, which is somewhat faster than for any.
    """
    package = load_openvino()
    core = package.Core()
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}

    def prepared(batch: int) -> Step:
        model = core.read_model(exported(shape), b"")
        model.reshape([batch, 3, shape.image, shape.image])
        request = core.compile_model(model, "CPU", hints).create_infer_request()
        images: np.ndarray = numbers(shape, batch).numpy()
        return lambda: request.infer([images], share_inputs=True)

    return prepared


def openvino_streams(shape: Shape, threads: int) -> Prepared:
    """A stream a thread, each with an image at a time: OpenVINO's own way to answer many."""
    package = load_openvino()
    core = package.Core()
    model = core.read_model(exported(shape), b"")
    model.reshape([1, 3, shape.image, shape.image])
    hints = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": threads,
        "PERFORMANCE_HINT": "THROUGHPUT",
    }
    queue = package.AsyncInferQueue(core.compile_model(model, "CPU", hints), threads)

    def prepared(batch: int) -> Step:
        images: np.ndarray = numbers(shape, batch).numpy()

        def step() -> None:
            for place in range(batch):
                queue.start_async([images[place : place + 1]], share_inputs=True)
            queue.wait_all()

        return step

    return prepared


# How each engine is made; vitral.runs.bench.PEERS has the packages that they need.
PEERS: dict[str, Callable[[Shape, int], Prepared]] = {
    "timm": lambda shape, threads: eager(build_timm, shape),
    "timm compiled": lambda shape, threads: compiled(shape),
    "huggingface": lambda shape, threads: eager(build_huggingface, shape),
    "vit-pytorch": lambda shape, threads: eager(build_vit_pytorch, shape),
    "timm on onnxruntime": onnxruntime,
    "timm on onnxruntime streams": onnxruntime_streams,
    "timm on openvino": partial(openvino, precision="f32"),
    "timm on openvino streams": openvino_streams,
}
# Measured on request, but not a goal: its answers differ.
OTHER_PRECISION: dict[str, Callable[[Shape, int], Prepared]] = {
    "timm on openvino bf16": partial(openvino, precision="bf16"),
}


def prepare(name: str, model: str, threads: int) -> Callable[[str], float]:
    """A turn: seconds of a call, for a line such as `8 0.5`."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    prepared = (PEERS | OTHER_PRECISION)[name](shape_of(model), threads)
    steps: dict[int, Step] = {}

    def measure(line: str) -> float:
        batch, least = line.split()
        if int(batch) not in steps:
            steps[int(batch)] = prepared(int(batch))
        return mean_seconds(steps[int(batch)], float(least))

    return measure


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    keep_freed_memory()
    serve_timings(lambda: prepare(sys.argv[1], sys.argv[2], int(sys.argv[3])))
