"""The OpenVINO engine.  B images, H x W pixels, C channels, K outputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np

from vitral.core.imports import load_openvino, model_file_errors
from vitral.inference.engines.engine import INPUT_NAME, Engine, FloatArray, Lazy, OnnxKind, PixelBatch, evenly_divisible

CHUNK = 4  # images a thread takes at a time from a large batch; the narrower the model, the more it gains


class OpenVinoEngine:
    """A model for any batch: chunks of images a thread, and all threads together for the rest of a batch."""

    def __init__(self, model: bytes | Path, outputs: int, threads: int) -> None:
        self._outputs, self._threads = outputs, threads
        self._core = load_openvino().Core()
        with model_file_errors(model):
            self._model = self._core.read_model(model)
        self._together = Lazy(partial(self._pool, 1, images=1))
        self._apart = {images: Lazy(partial(self._pool, threads, images)) for images in (CHUNK, 1)}

    def run(self, pixels: PixelBatch) -> FloatArray:
        found = np.empty((len(pixels), self._outputs), dtype=np.float32)  # (B, K)
        done = 0
        for images, pool in self._apart.items():
            end = done + evenly_divisible(len(pixels) - done, self._threads, images)
            if done < end:
                with pool.get().borrow() as queue:
                    for start in range(done, end, images):
                        some = slice(start, start + images)
                        queue.start_async([pixels[some]], found[some], share_inputs=True)
                    queue.wait_all()
            done = end
        if done < len(pixels):
            with self._together.get().borrow() as request:
                for index in range(done, len(pixels)):
                    request.infer([pixels[index : index + 1]], share_inputs=True)
                    copy_output(request, found[index : index + 1])
        return found

    def _pool(self, streams: int, images: int) -> "RequestPool":
        """Requests to the model compiled for this number of streams and images a stream."""
        compiled = self._compiled(streams, images)
        return RequestPool(compiled.create_infer_request if streams == 1 else partial(make_queue, compiled, streams))

    def _compiled(self, streams: int, images: int) -> Any:
        model = self._model.clone()
        _, *sides = model.input(0).partial_shape
        model.reshape([images, *sides])  # faster than a dynamic batch
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": streams,
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
        }
        return self._core.compile_model(model, "CPU", settings)


class OpenVino(OnnxKind):
    """OpenVINO on the CPU, in float32: by default it uses bfloat16 where the CPU has it."""

    kind: Literal["openvino"] = "openvino"

    def open(self, model: bytes, outputs: int, threads: int) -> Engine:
        return OpenVinoEngine(model, outputs, threads)


@dataclass(frozen=True)
class WholeBatchEngine:
    """A model that is given whole batches."""

    model: Any

    def run(self, pixels: PixelBatch) -> FloatArray:
        return self.model.create_infer_request().infer({INPUT_NAME: pixels}, share_inputs=True)[0]  # (B, K)


def compile_whole_batch(model: bytes | Path) -> WholeBatchEngine:
    """A model file, compiled for its own batch size."""
    core = load_openvino().Core()
    exact = {"INFERENCE_PRECISION_HINT": "f32"}  # the default is bfloat16 where the CPU has it
    with model_file_errors(model):
        return WholeBatchEngine(core.compile_model(core.read_model(model), "CPU", exact))


class RequestPool:
    """Inference requests, each used by one caller at a time; more are made as needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._free: SimpleQueue[Any] = SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """A request for the block; after an exception it is not used again."""
        try:
            request = self._free.get_nowait()
        except Empty:
            request = self._make()
        yield request
        self._free.put(request)


def make_queue(compiled: Any, jobs: int) -> Any:
    """A queue of requests that copy their outputs."""
    queue = load_openvino().AsyncInferQueue(compiled, jobs)
    queue.set_callback(copy_output)
    return queue


def copy_output(request: Any, rows: FloatArray) -> None:
    """Copy the output into rows of the result."""
    rows[:] = request.get_output_tensor(0).data  # (images, K)
