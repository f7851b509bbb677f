"""The ONNX Runtime engine.  B images, H x W pixels, C channels, K outputs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitral.core.imports import load_onnxruntime, model_file_errors
from vitral.inference.engines.engine import INPUT_NAME, Engine, FloatArray, Lazy, OnnxKind, PixelBatch, evenly_divisible

ERRORS_ONLY = 3  # its warnings are about graph clean-up
ALL_THREADS = 0


class OnnxRuntimeEngine:
    """An ONNX model for any batch: one image a thread, and all threads together for the rest of a batch."""

    def __init__(self, model: bytes | Path, outputs: int, threads: int) -> None:
        self._outputs, self._threads = outputs, threads
        self._together = Lazy(lambda: make_session(model, threads))
        self._apart = Lazy(lambda: (make_session(model, 1), ThreadPoolExecutor(threads)))

    def run(self, pixels: PixelBatch) -> FloatArray:
        images = [pixels[index : index + 1] for index in range(len(pixels))]
        whole = evenly_divisible(len(images), self._threads)
        rows: list[FloatArray] = [np.empty((0, self._outputs), dtype=np.float32)]
        if whole:
            one, pool = self._apart.get()  # one image a thread: no synchronization at every operator
            rows += pool.map(lambda image: run_session(one, image), images[:whole])
        rows += (run_session(self._together.get(), image) for image in images[whole:])
        return np.concatenate(rows)  # (B, K)


class OnnxRuntime(OnnxKind):
    """ONNX Runtime on the CPU."""

    kind: Literal["onnxruntime"] = "onnxruntime"

    def open(self, model: bytes, outputs: int, threads: int) -> Engine:
        return OnnxRuntimeEngine(model, outputs, threads)


@dataclass(frozen=True)
class WholeBatchEngine:
    """An ONNX model that is given whole batches."""

    session: Any

    def run(self, pixels: PixelBatch) -> FloatArray:
        return run_session(self.session, pixels)


def run_session(session: Any, pixels: PixelBatch) -> FloatArray:
    """The outputs of a session."""
    return session.run(None, {INPUT_NAME: pixels})[0]  # (B, K)


def make_session(model: bytes | Path, threads: int) -> Any:
    """A session with this number of threads."""
    runtime = load_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = ERRORS_ONLY
    source = model if isinstance(model, bytes) else str(model)
    with model_file_errors(model):
        return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
