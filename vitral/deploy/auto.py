"""The engine that is quickest here: measured once for a machine and a kind of model, and remembered.

To make it takes seconds, in which another that is ready at once has answered a few images: so those are left to it.

What is remembered is a small file in the user's cache, called by a hash of all that decides the speed. The values of
weights do not, so models that differ in nothing else share what was found.
"""

import hashlib
import logging
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np

from vitral import __version__
from vitral.config import Config
from vitral.deploy.engine import Bytes, Engine, Numbers
from vitral.deploy.engines.eager import Eager
from vitral.deploy.engines.kind import EngineKind, Lazily, Threads, count_of
from vitral.deploy.engines.onnxruntime import OnnxRuntime
from vitral.deploy.engines.openvino import OpenVino
from vitral.deploy.graph import Graph
from vitral.errors import ConfigError

log = logging.getLogger("vitral")

Case = Literal["single images", "batches"]  # one engine may be best for the one and another for the other
PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "torch")
ROUNDS = 5
FIRST = Eager()
FEW = 31  # images that the first engine answers; who comes with more, or has had so many, is worth another engine
TRIED: tuple[EngineKind, ...] = (OpenVino(), OnnxRuntime(), Eager())  # what is not here takes a minute to try


class Choice(Config):
    """What was found: seconds an image of each engine that was tried, and why others were not."""

    key: str
    seconds: dict[str, float]
    passed_over: dict[str, str]

    @property
    def best(self) -> str:
        return min(self.seconds, key=lambda kind: self.seconds[kind])

    def told(self, case: Case) -> str:
        """The choice in a line: how fast the others are beside it."""
        least = self.seconds[self.best]
        others = sorted((seconds, kind) for kind, seconds in self.seconds.items() if kind != self.best)
        shares = [f"{kind} has {least / seconds:.2f} of its speed" for seconds, kind in others]
        reasons = [f"{kind} was passed over ({why})" for kind, why in self.passed_over.items()]
        return "; ".join([f"the engine for {case} is {self.best}", *shares, *reasons])


class Question(NamedTuple):
    """What is to be run, with how many threads, and for what."""

    graph: Graph
    about: str  # the architecture and all else that the graph was made from
    threads: int
    case: Case

    def key(self) -> str:
        """A hash of all that decides the speed."""
        machine = (platform.machine(), processor(), str(os.cpu_count()), str(self.threads))
        versions = (f"{name} {version_of(name)}" for name in PACKAGES)
        parts = (__version__, self.about, self.case, *machine, *versions)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def images(self) -> Bytes:
        """Noise to measure with: one image, or two for each thread."""
        count = 1 if self.case == "single images" else 2 * self.threads
        shape = (count, *self.graph.image, self.graph.channels)
        return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)  # (B, H, W, C)


class AutoEngine:
    """Whichever engine is quickest for the batch at hand, once there were more than a few images.

    Which one it is, is found out when the first batch of its kind comes.
    """

    def __init__(self, graph: Graph, about: str, threads: Threads = "torch") -> None:
        self._graph, self._about, self._threads = graph, about, count_of(threads)
        self._built = {kind_of(each): Lazily(partial(each.build, graph, self._threads)) for each in TRIED}
        self._single = Lazily(partial(self._chosen, "single images"))
        self._batches = Lazily(partial(self._chosen, "batches"))
        self._first: Lazily[Engine] | None = Lazily(partial(FIRST.build, graph, self._threads))
        self._lock, self._seen = Lock(), 0

    def run(self, pixels: Bytes) -> Numbers:
        first = self._first
        if first is not None and self._are_few(len(pixels)):
            return first.get().run(pixels)
        return (self._single if len(pixels) < 2 else self._batches).get().run(pixels)

    def settle(self) -> None:
        """Leave no more images to the first engine: many are to come."""
        self._first = None

    def _are_few(self, images: int) -> bool:
        """Whether there were but a few with these."""
        with self._lock:
            self._seen += images
            if self._seen > FEW:
                self.settle()
            return self._seen <= FEW

    def _chosen(self, case: Case) -> Engine:
        choice = chosen(Question(self._graph, self._about, self._threads, case), cache_folder())
        return self._built[choice.best].get()


def chosen(question: Question, folder: Path) -> Choice:
    """The choice that was made before, or one that is made now and kept; either way it is told."""
    key = question.key()
    path = folder / f"{key}.json"
    found = read(path, key)
    if found is not None:
        log.info(f"{found.told(question.case)}; as measured before")
        return found
    found = measured(question, key)
    log.info(found.told(question.case))
    keep(path, found)
    return found


def measured(question: Question, key: str) -> Choice:
    """Try every engine that can run the graph."""
    log.info(f"measuring which engine is quickest for {question.case}; this is done once")
    engines: dict[str, Engine] = {}
    passed_over = {}
    pixels = question.images()
    for each in TRIED:
        try:
            each.check(question.graph)
            engine = each.build(question.graph, question.threads)
            engine.run(pixels)  # to warm up
        except ConfigError as error:
            passed_over[kind_of(each)] = error.what
        except (RuntimeError, MemoryError) as error:  # of a package that is not ours; there are others
            passed_over[kind_of(each)] = f"it failed: {error}"
        else:
            engines[kind_of(each)] = engine
    if not engines:
        remedy = "ask for one by its name to see all of it: engine=eager"
        reasons = "; ".join(f"{kind}: {why}" for kind, why in passed_over.items())
        raise ConfigError(f"no engine can run this model: {reasons}", where="engine", remedy=remedy)
    return Choice(key=key, seconds=quickest(engines, pixels), passed_over=passed_over)


def quickest(engines: Mapping[str, Engine], pixels: Bytes) -> dict[str, float]:
    """Seconds an image of the quickest round of each. What disturbs a round only makes it slower, and by turns it
    disturbs all alike."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            started = time.perf_counter()
            engine.run(pixels)
            found[name].append((time.perf_counter() - started) / len(pixels))
    return {name: min(seconds) for name, seconds in found.items()}


def read(path: Path, key: str) -> Choice | None:
    """The choice in a file, if it is whole and is about this."""
    try:
        found = Choice.from_json(path.read_bytes())
        if found.key == key and found.seconds and set(found.seconds) <= {kind_of(each) for each in TRIED}:
            return found
    except FileNotFoundError:
        return None
    except (OSError, ConfigError):
        pass
    log.info(f"{path} is damaged, so the engines are measured again")
    return None


def keep(path: Path, choice: Choice) -> None:
    """Write the choice, all or nothing. It is worth having without a cache too, so a disk that refuses is no error."""
    draft = path.with_suffix(f".tmp-{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(choice.to_json())
        draft.replace(path)
    except OSError as error:
        log.info(f"the choice of an engine is not kept for the next time: {error.filename or path}: {error.strerror}")
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def cache_folder() -> Path:
    """The user's: `$XDG_CACHE_HOME/vitral/engines`, or in `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"  # the XDG rules ignore a relative one
    return base / "vitral" / "engines"


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def kind_of(engine: EngineKind) -> str:
    return type(engine).model_fields["kind"].default
