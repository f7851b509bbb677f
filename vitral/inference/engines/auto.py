"""The fastest engine: measured once for a machine and an architecture, and cached.

A stream of images has one engine, chosen before its first batch. A few images are run by `eager`, which is ready at
once; building another engine takes seconds. Any other stream is run by the engine that was fastest in a measurement.

The measurement is a small file in the user's cache, named by a hash of all that decides the speed: architecture,
processor, threads, package versions. A measurement on a busy machine is repeated when the machine is quiet.
"""

import hashlib
import logging
import os
import platform
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from vitral import __version__
from vitral.core.config import Config, OpenUnion, union_members
from vitral.core.errors import ConfigError, did_you_mean, format_choices
from vitral.core.files import read_file
from vitral.core.machine import cache_folder, cpu_count, cpu_name
from vitral.core.storage import STORAGE, os_error_message
from vitral.inference.engines.compiled import Compiled
from vitral.inference.engines.eager import Eager
from vitral.inference.engines.engine import (
    AUTO,
    BaseEngine,
    Engine,
    FloatArray,
    Lazy,
    NamedEngine,
    OutputKind,
    PixelBatch,
    Threads,
    kind_of,
    package_version,
    thread_count,
)
from vitral.inference.engines.onnxruntime import OnnxRuntime
from vitral.inference.engines.openvino import OpenVino
from vitral.inference.graph.graph import Graph, build_graph_sharing_weights
from vitral.inference.graph.token_merging import Merging
from vitral.weights.load import LoadedModel

EngineConfig = Annotated[Eager | Compiled | OnnxRuntime | OpenVino, OpenUnion()]


log = logging.getLogger("vitral")

Case = Literal["single images", "batches"]  # the fastest engine may differ
CASES: tuple[Case, ...] = get_args(Case)
PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "torch")
ROUNDS = 5
READY_ENGINE = Eager()
FEW_IMAGES = 31  # a stream of at most this many is over before another engine is built
BUSY_LOAD = 0.5  # load average a core above which a measurement is noisy
MISSING = "not installed"  # why an engine is not measured
CANDIDATES: tuple[BaseEngine, ...] = (OpenVino(), OnnxRuntime(), Eager())  # any other takes a minute to build


class EngineChoice(Config):
    """A measurement: seconds an image of each engine in each case, and why others were not measured."""

    key: str
    load: float  # load average a core when the measurement began
    seconds: dict[Case, dict[str, float]]
    unsupported: dict[str, str]
    failed: dict[str, str] = Field(default_factory=dict)  # perhaps only this time, so the choice is not cached

    @property
    def is_noisy(self) -> bool:
        """Whether other processes may have disturbed the measurement."""
        return self.load > BUSY_LOAD

    def best(self, case: Case) -> str:
        return min(self.seconds[case], key=self.seconds[case].__getitem__)

    def lines(self) -> list[str]:
        """The choice for the log: the speed of the others relative to the best of each case."""
        lines = []
        for case, seconds in self.seconds.items():
            (least, best), *others = sorted((time, kind) for kind, time in seconds.items())
            if not others and not self.failed:
                continue  # there was no choice
            ratios = [f"{kind} has {least / time:.2f} of its speed" for time, kind in others]
            lines.append("; ".join([f"engine for {case}: {best}", *ratios]))
        return lines + rejection_lines(self.unsupported, self.failed)


class Workload(NamedTuple):
    """What is to be run, and with how many threads."""

    graph: Graph
    about: str  # the architecture and all else that the graph was made from
    threads: int

    def key(self) -> str:
        """A hash of all that decides the speed."""
        machine = (platform.machine(), cpu_name(), str(os.cpu_count()), str(self.threads))
        versions = (f"{name} {package_version(name)}" for name in PACKAGES)
        return hashlib.sha256("\n".join((__version__, self.about, *machine, *versions)).encode()).hexdigest()

    def images(self, case: Case) -> PixelBatch:
        """Random pixels to measure with: one image, or two for each thread."""
        count = 1 if case == "single images" else 2 * self.threads
        shape = (count, *self.graph.image_size, self.graph.channels)
        return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)  # (B, H, W, C)


EngineBuilders = Mapping[str, Lazy[Engine]]  # by the name of their kind


class AutoEngine:
    """One engine for each stream of images. All calls of `run` are one stream, whose first batch decides."""

    def __init__(self, graph: Graph, about: str, threads: Threads = "torch") -> None:
        self._workload = Workload(graph, about, thread_count(threads))
        self._engines: EngineBuilders = {kind_of(each): self._build_lazily(each) for each in CANDIDATES}
        self._ready = self._build_lazily(READY_ENGINE)
        self._choice = Lazy(self._choose)
        self._lock = Lock()
        self._default: NamedEngine | None = None

    @property
    def name(self) -> str:
        """The engine that `run` uses; `auto` until its first batch."""
        return self._default.name if self._default else AUTO

    def select(self, images: int | None, batch_size: int) -> NamedEngine:
        """The engine for a stream of this many images (None: unknown), in batches of this size."""
        if images is not None and images <= FEW_IMAGES:
            return NamedEngine(kind_of(READY_ENGINE), self._ready.get())
        best = self._choice.get().best("single images" if batch_size < 2 else "batches")
        return NamedEngine(best, self._engines[best].get())

    def run(self, pixels: PixelBatch) -> FloatArray:
        with self._lock:
            if self._default is None:
                self._default = self.select(None, len(pixels))
        return self._default.engine.run(pixels)

    def _choose(self) -> EngineChoice:
        choice = choose_engine(self._workload, self._engines, cache_folder("engines"))
        self._engines = {best: self._engines[best] for best in map(choice.best, CASES)}  # the others are freed
        return choice

    def _build_lazily(self, kind: BaseEngine) -> Lazy[Engine]:
        return Lazy(partial(kind.build, self._workload.graph, self._workload.threads))


def load_per_core() -> float:
    """The load average of the last minute, divided by the cores; 0 where the system does not report it."""
    return os.getloadavg()[0] / cpu_count() if hasattr(os, "getloadavg") else 0.0


def choose_engine(workload: Workload, engines: EngineBuilders, folder: Path) -> EngineChoice:
    """The cached choice, or a new measurement, which is cached; either is logged."""
    key = workload.key()
    path = folder / f"{key}.json"
    choice = read_choice(path, key)
    if choice is not None and not (choice.is_noisy and load_per_core() <= BUSY_LOAD):
        names = {choice.best(case) for case in CASES}
        best = " and ".join(f"{choice.best(case)} for {case}" for case in CASES) if len(names) > 1 else names.pop()
        log.info(f"engine: {best}, as measured before")
        return choice
    if choice is not None:
        log.info(f"the engines were measured on a busy machine (load {choice.load:.1f} per core); measuring again")
    choice = measure_engines(workload, engines, key)
    for line in choice.lines():
        log.info(line)
    if not choice.failed:
        save_choice(path, choice)
    return choice


def measure_engines(workload: Workload, engines: EngineBuilders, key: str) -> EngineChoice:
    """Time every candidate that can run the graph."""
    load = load_per_core()
    noise = {case: workload.images(case) for case in CASES}
    ready: dict[str, Engine] = {}
    unsupported: dict[str, str] = {}
    failed: dict[str, str] = {}
    for each in CANDIDATES:
        try:
            each.check(workload.graph)
        except ConfigError as error:
            unsupported[kind_of(each)] = MISSING if error.code == "config.missing_package" else error.message
    candidates = [kind_of(each) for each in CANDIDATES if kind_of(each) not in unsupported]
    if len(candidates) > 1:
        log.info("measuring which engine is fastest for this model; this is done once")
    for kind in candidates:
        try:
            for pixels in noise.values():
                engines[kind].get().run(pixels)  # builds it
        except ConfigError as error:
            unsupported[kind] = error.message
        except Exception as error:  # packages have their own errors; other engines may work
            failed[kind] = str(error)
        else:
            ready[kind] = engines[kind].get()
    if not ready:
        hint = "name one to see the whole error: engine=eager"
        why = "; ".join(rejection_lines(unsupported, failed))
        raise ConfigError(f"no engine can run this model: {why}", code="config.no_engine", where="engine", hint=hint)
    seconds = {case: time_engines(ready, pixels) for case, pixels in noise.items()}
    return EngineChoice(key=key, load=load, seconds=seconds, unsupported=unsupported, failed=failed)


def rejection_lines(unsupported: Mapping[str, str], failed: Mapping[str, str]) -> list[str]:
    """Why engines were not measured, a line each."""
    lines = [f"{kind} cannot run this model: {why}" for kind, why in unsupported.items() if why != MISSING]
    if MISSING in unsupported.values():
        lines.append("tip: pip install 'vitral[deploy]' adds engines that may be faster: ONNX Runtime and OpenVINO")
    return lines + [f"{kind} failed: {why}" for kind, why in failed.items()]


def time_engines(engines: Mapping[str, Engine], pixels: PixelBatch) -> dict[str, float]:
    """Seconds an image in the fastest round of each engine. The engines take turns, so that noise affects all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):  # the first warms up
        for name, engine in engines.items():
            engine.run(pixels)  # outlasts the threads of the engine before, which spin for a while after their work
            started = time.perf_counter()
            engine.run(pixels)
            seconds[name].append((time.perf_counter() - started) / len(pixels))
    return {name: min(times) for name, times in seconds.items()}


def read_choice(path: Path, key: str) -> EngineChoice | None:
    """The choice in a file, if it is valid and has this key."""
    try:
        choice = EngineChoice.from_json(read_file(path))
        known = {kind_of(each) for each in CANDIDATES}
        if choice.key == key and all(set() < {*choice.seconds.get(case, ())} <= known for case in CASES):
            return choice
    except FileNotFoundError:
        return None
    except (OSError, ConfigError):
        pass
    log.info(f"{path} is damaged; measuring the engines again")
    return None


def save_choice(path: Path, choice: EngineChoice) -> None:
    """Write the choice atomically. A cache that cannot be written is logged, and is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        STORAGE.replace_file(path, choice.to_json().encode(), unique=True)
    except OSError as error:
        log.info(f"the choice of an engine is not cached: {error.filename or path}: {os_error_message(error)}")


def parse_engine(name: str) -> BaseEngine | None:
    """The engine of that name with its defaults; None for `auto`."""
    kinds = {kind_of(kind()): kind for kind in union_members(EngineConfig)}
    if name == AUTO:
        return None
    if name not in kinds:
        choices = (AUTO, *kinds)
        message = f"expected {format_choices(choices)}, got {name!r}"
        raise ConfigError(message, code="config.unknown_name", where="engine", hint=did_you_mean(name, choices))
    return kinds[name]()


def build_engine(kind: BaseEngine | None, loaded: LoadedModel, output: OutputKind, merging: Merging) -> Engine:
    """An engine for the outputs of a model; without a kind the fastest one."""
    graph = build_graph_sharing_weights(loaded, output, merging)
    if kind is not None:
        return kind.build(graph)
    about = (loaded.bundle.model.to_json(), str(graph.image_size), merging.to_json())
    return AutoEngine(graph, "\n".join(about))
