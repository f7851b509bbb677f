"""The interface of engines: uint8 pixels in, logits or features out.  B images, H x W pixels, C channels, K outputs."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.core.imports import is_imported, load_onnx, load_onnxruntime, load_openvino
from vitral.core.machine import default_threads

if TYPE_CHECKING:
    from vitral.inference.graph.graph import Graph


PixelBatch = NDArray[np.uint8]
FloatArray = NDArray[np.float32]
AUTO = "auto"  # the fastest engine, as measured
OutputKind = Literal["logits", "features"]
Precision = Literal["float32", "int8"]  # of the matrix products in blocks
INPUT_NAME = "pixels"  # of the input of every written graph
LOADERS = {"onnxruntime": load_onnxruntime, "openvino": load_openvino}


class Engine(Protocol):
    """A model that is ready to run. It is immutable and thread-safe."""

    def run(self, pixels: PixelBatch) -> FloatArray:
        """The outputs (B, K) for any number of images (B, H, W, C)."""
        ...


class NamedEngine(NamedTuple):
    """An engine, and the name of its kind."""

    name: str
    engine: Engine


def run_in_batches(engine: Engine, pixels: PixelBatch, batch: int) -> FloatArray:
    """The outputs for images in batches of exactly this size. The last batch is padded, and its padding dropped."""
    outputs = []
    for start in range(0, len(pixels), batch):
        chunk = pixels[start : start + batch]
        padded = np.concatenate([chunk, np.repeat(chunk[-1:], batch - len(chunk), axis=0)])
        outputs.append(engine.run(np.ascontiguousarray(padded))[: len(chunk)])
    return np.concatenate(outputs)


Threads = int | Literal["torch"]  # a number, or as many as torch uses or would use

T = TypeVar("T")


def thread_count(threads: Threads) -> int:
    """The number of threads; torch is not imported for it."""
    if threads != "torch":
        return threads
    if not is_imported("torch"):  # an export runs without it
        return default_threads()
    import torch

    return torch.get_num_threads()


def evenly_divisible(images: int, threads: int, chunk: int = 1) -> int:
    """How many images of a batch the threads divide evenly in chunks; they run the rest together."""
    return images - images % (chunk * threads) if threads > 1 else 0


def package_version(package: str) -> str:
    """The installed version of a package, or `none`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


class BaseEngine(Config):
    """The config of an engine. By default it runs any graph."""

    def check(self, graph: "Graph") -> None:
        """Raise ConfigError for a graph that this engine cannot run, or where a package is missing."""

    def build(self, graph: "Graph", threads: Threads = "torch") -> Engine:
        """The graph, ready to run."""
        raise NotImplementedError


class OnnxKind(BaseEngine):
    """The config of an engine that runs the graph as an ONNX model."""

    def open(self, model: bytes, outputs: int, threads: int) -> Engine:
        """The engine of a model with this number of outputs."""
        raise NotImplementedError

    def check(self, graph: "Graph") -> None:
        load_onnx()
        LOADERS[kind_of(self)]()
        from vitral.inference.graph.onnx import trace

        trace(graph)

    def build(self, graph: "Graph", threads: Threads = "torch") -> Engine:
        load_onnx()
        LOADERS[kind_of(self)]()
        from vitral.inference.graph.onnx import lower_for_onnx, serialize, to_onnx

        model = serialize(to_onnx(lower_for_onnx(graph, "float32")), "engine", "use engine=eager")
        return self.open(model, graph.outputs, thread_count(threads))


def kind_of(engine: BaseEngine) -> str:
    """The name of an engine's kind."""
    return type(engine).model_fields["kind"].default


class Lazy(Generic[T]):
    """A value that is made once, by whichever thread needs it first."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._lock = Lock()
        self._made: list[T] = []

    @property
    def is_made(self) -> bool:
        """Whether the value was made."""
        return bool(self._made)

    def get(self) -> T:
        if not self._made:
            with self._lock:
                if self._make is not None:
                    self._made.append(self._make())
                    self._make = None  # frees what it refers to
        return self._made[0]
