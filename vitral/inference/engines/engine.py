"""What every engine promises: pixels as bytes in, answers out.  B images, H x W pixels, C channels, K numbers.

What every kind of engine has.  B images, K numbers.
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.core.imports import is_imported
from vitral.core.machine import default_threads as usual_threads

if TYPE_CHECKING:
    from vitral.inference.graph.graph import Graph


PixelBatch = NDArray[np.uint8]
FloatArray = NDArray[np.float32]
AUTO = "auto"  # whichever engine is quickest
OutputKind = Literal["logits", "features"]
Precision = Literal["float32", "int8"]  # what the layers of blocks multiply
INPUT_NAME = "pixels"  # what the images are called wherever a graph is written to


class Engine(Protocol):
    """A model that is ready to answer. It never changes, and any thread may ask it at any time."""

    def run(self, pixels: PixelBatch) -> FloatArray:
        """The answers (B, K) to any number of images (B, H, W, C)."""
        ...


@runtime_checkable
class Undecided(Engine, Protocol):
    """An engine that first answers in a way that is ready at once, and not the quickest."""

    def settle(self) -> None:
        """Be as quick as can be from now on: many images are to come."""
        ...


def run_in_batches(engine: Engine, pixels: PixelBatch, batch: int) -> FloatArray:
    """The answers to images in batches of exactly so many: the last is filled up, and what fills it forgotten."""
    found = []
    for start in range(0, len(pixels), batch):
        some = pixels[start : start + batch]
        filled = np.concatenate([some, np.repeat(some[-1:], batch - len(some), axis=0)])
        found.append(engine.run(np.ascontiguousarray(filled))[: len(some)])
    return np.concatenate(found)


Threads = int | Literal["torch"]  # so many, or as many as torch uses, or would use

T = TypeVar("T")


def thread_count(threads: Threads) -> int:
    if threads != "torch":
        return threads
    if not is_imported("torch"):  # an export does without
        return usual_threads()
    import torch

    return torch.get_num_threads()


def evenly_divisible(images: int, threads: int, portion: int = 1) -> int:
    """How many images of a batch the threads share out by portions, as many to each; the rest they answer together."""
    return images - images % (portion * threads) if threads > 1 else 0


class EngineKind(Config):
    """A way to run a graph; the hooks of a kind that runs any."""

    def check(self, graph: "Graph") -> None:
        """Refuse a graph that this kind cannot run, and name the part; ConfigError too where a package is missing."""

    def build(self, graph: "Graph", threads: Threads = "torch") -> Engine:
        """The graph, ready to answer; what it needs of the graph it keeps."""
        raise NotImplementedError


def kind_of(engine: EngineKind) -> str:
    """The name of an engine."""
    return type(engine).model_fields["kind"].default


class Lazy(Generic[T]):
    """Something that is made when it is first asked for, once, whoever asks."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._lock = Lock()
        self._made: list[T] = []

    def get(self) -> T:
        if not self._made:
            with self._lock:
                if self._make is not None:
                    self._made.append(self._make())
                    self._make = None  # with all that it was to be made of
        return self._made[0]
