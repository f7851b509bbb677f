"""The compiled engine: torch.compile.  B images, H x W pixels, K outputs."""

import logging
import os
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Literal

import torch

from vitral.core.errors import ConfigError
from vitral.inference.engines.engine import BaseEngine, Engine, FloatArray, PixelBatch, Threads
from vitral.inference.graph.graph import Graph

log = logging.getLogger("vitral")
BACKEND = "inductor"
CHUNK = 8  # images at a time: the graph is compiled for this batch size and for one


class Compiled(BaseEngine):
    """torch.compile with frozen weights, with as many threads as torch has. It takes a minute to compile."""

    kind: Literal["compiled"] = "compiled"

    def check(self, graph: Graph) -> None:
        name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch looks for it
        if not shutil.which(name):
            message = f"torch.compile needs a C++ compiler, and {name} was not found"
            hint = "install g++, set CXX, or use engine=eager"
            raise ConfigError(message, code="config.missing_compiler", where="engine", hint=hint)

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        self.check(graph)
        return CompiledEngine(graph)


def freeze_weights() -> AbstractContextManager[object]:
    """What is compiled in the block has its weights as constants, packed by inductor.

    This is a private API of torch: as an option of `torch.compile` the setting comes too late, since the weights are
    inputs of the graph by then. Without it compiled code is slower.
    """
    try:
        from torch._inductor import config

        patched: AbstractContextManager[object] = config.patch({"freezing": True})
    except (ImportError, AttributeError):
        return nullcontext()
    return patched


class CompiledEngine:
    """Compiled code for one image and for a chunk of them. The rest of a batch is run one by one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._code = torch.compile(graph, backend=BACKEND, dynamic=False)
        self._lock, self._compiled = Lock(), set[int]()

    @torch.no_grad()
    def run(self, pixels: PixelBatch) -> FloatArray:
        outputs = torch.empty(len(pixels), self._graph.outputs)  # (B, K)
        whole = len(pixels) - len(pixels) % CHUNK
        starts = [(start, CHUNK) for start in range(0, whole, CHUNK)]
        for start, size in (*starts, *((start, 1) for start in range(whole, len(pixels)))):
            self._compile(size)
            outputs[start : start + size] = self._code(torch.from_numpy(pixels[start : start + size]))
        return outputs.numpy()

    def _compile(self, size: int) -> None:
        """Compile for this batch size, once."""
        if size in self._compiled:
            return
        with self._lock:
            if size not in self._compiled:
                started = time.perf_counter()
                zeros = torch.zeros(size, *self._graph.image_size, self._graph.channels, dtype=torch.uint8)
                # In inference mode weights are not frozen.
                with freeze_weights(), torch.inference_mode(mode=False), torch.no_grad():
                    self._code(zeros)
                self._compiled.add(size)
                images = "one image" if size == 1 else f"{size} images"
                log.info(f"compiled for {images} in {time.perf_counter() - started:.0f} s")
