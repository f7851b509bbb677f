"""Torch's compiler.  B images, H x W pixels, K numbers."""

import logging
import time
from threading import Lock
from typing import Any, Literal

import torch

from vitral.core.errors import ConfigError
from vitral.inference.engines.engine import Engine, EngineKind, FloatArray, PixelBatch, Threads
from vitral.inference.graph.graph import Graph

log = logging.getLogger("vitral")
BACKEND = "inductor"
FREEZE_WEIGHTS: dict[str, Any] = {"freezing": True}  # weights are constants, and packed
CHUNK = 8  # images at a time: code is made for this many and for one, and for no other number


class Compiled(EngineKind):
    """Code that torch writes for this graph. It has as many threads as torch has, and takes a minute to be made."""

    kind: Literal["compiled"] = "compiled"

    def check(self, graph: Graph) -> None:
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            message = "torch's compiler needs one for C++, and there is none"
            raise ConfigError(
                message, code="config.missing_compiler", where="engine", hint="install g++, or use engine=eager"
            ) from None

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        self.check(graph)
        return CompiledEngine(graph)


def inductor() -> Any:
    """The settings of torch's compiler, which take a second to import."""
    from torch._inductor import config

    return config


class CompiledEngine:
    """Code for one image and for a portion of them; what is left over of a batch is answered one by one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._code = torch.compile(graph, backend=BACKEND, dynamic=False)
        self._lock, self._made = Lock(), set[int]()

    @torch.no_grad()
    def run(self, pixels: PixelBatch) -> FloatArray:
        found = torch.empty(len(pixels), self._graph.outputs)  # (B, K)
        whole = len(pixels) - len(pixels) % CHUNK
        starts = [(start, CHUNK) for start in range(0, whole, CHUNK)]
        for start, size in (*starts, *((start, 1) for start in range(whole, len(pixels)))):
            self._make(size)
            found[start : start + size] = self._code(torch.from_numpy(pixels[start : start + size]))
        return found.numpy()

    def _make(self, size: int) -> None:
        """Have the code for so many images made, once."""
        if size in self._made:
            return
        with self._lock:
            if size not in self._made:
                started = time.perf_counter()
                zeros = torch.zeros(size, *self._graph.image_size, self._graph.channels, dtype=torch.uint8)
                # As an option of torch.compile it would come too late: by then the weights are inputs of the code.
                # Nor are weights frozen in inference mode.
                with inductor().patch(FREEZE_WEIGHTS), torch.inference_mode(mode=False), torch.no_grad():
                    self._code(zeros)
                self._made.add(size)
                images = "one image" if size == 1 else f"{size} images"
                log.info(f"compiled for {images} in {time.perf_counter() - started:.0f} s")
