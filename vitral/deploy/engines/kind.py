"""What every kind of engine has.  B images, K numbers."""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from vitral.config import Config
from vitral.deploy.engine import Engine
from vitral.importing import is_imported
from vitral.machine import threads as usual_threads

if TYPE_CHECKING:
    from vitral.deploy.graph import Graph

Threads = int | Literal["torch"]  # so many, or as many as torch uses, or would use

T = TypeVar("T")


def count_of(threads: Threads) -> int:
    if threads != "torch":
        return threads
    if not is_imported("torch"):  # an export does without
        return usual_threads()
    import torch

    return torch.get_num_threads()


def shared_out(images: int, threads: int, portion: int = 1) -> int:
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


class Lazily(Generic[T]):
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
