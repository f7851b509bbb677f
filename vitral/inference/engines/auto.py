"""The engine that is quickest here: measured once for a machine and a kind of model, and remembered.

To make it takes seconds, in which another that is ready at once has answered a few images: so those are left to it.

What is remembered is a small file in the user's cache, called by a hash of all that decides the speed. The values of
weights do not, so models that differ in nothing else share what was found.

The engines that there are.
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
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from vitral import __version__
from vitral.core.config import Config, union_members
from vitral.core.errors import ConfigError, format_choices, did_you_mean
from vitral.core.machine import cache_folder, cpu_name
from vitral.inference.engines.compiled import Compiled
from vitral.inference.engines.eager import Eager
from vitral.inference.engines.engine import (
    AUTO,
    Engine,
    EngineKind,
    FloatArray,
    Lazy,
    OutputKind,
    PixelBatch,
    Threads,
    kind_of,
    thread_count,
)
from vitral.inference.engines.onnxruntime import OnnxRuntime
from vitral.inference.engines.openvino import OpenVino
from vitral.inference.graph.graph import Graph, graph_around
from vitral.inference.graph.token_merging import Merging
from vitral.weights.load import Loaded

EngineConfig = Annotated[Eager | Compiled | OnnxRuntime | OpenVino, Field(discriminator="kind")]


log = logging.getLogger("vitral")

Case = Literal["single images", "batches"]  # one engine may be best for the one and another for the other
CASES: tuple[Case, ...] = get_args(Case)
PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "torch")
ROUNDS = 5
READY_ENGINE = Eager()
FEW_IMAGES = (
    31  # images that the first engine answers; who comes with more, or has had so many, is worth another engine
)
CANDIDATES: tuple[EngineKind, ...] = (OpenVino(), OnnxRuntime(), Eager())  # what is not here takes a minute to try


class EngineChoice(Config):
    """What was found: seconds an image of each engine that was tried, by the case, and why others were not."""

    key: str
    seconds: dict[Case, dict[str, float]]
    passed_over: dict[str, str]
    failed: dict[str, str] = Field(default_factory=dict)  # perhaps by accident, so it is not kept

    def best(self, case: Case) -> str:
        seconds = self.seconds[case]
        return min(seconds, key=lambda kind: seconds[kind])

    def told(self) -> list[str]:
        """The choice in lines: how fast the others are beside the best of each case."""
        return [*map(self._compared, CASES), *rejection_lines(self.passed_over, self.failed)]

    def _compared(self, case: Case) -> str:
        best, seconds = self.best(case), self.seconds[case]
        others = sorted((time, kind) for kind, time in seconds.items() if kind != best)
        shares = [f"{kind} has {seconds[best] / time:.2f} of its speed" for time, kind in others]
        return "; ".join([f"the engine for {case} is {best}", *shares])


class Workload(NamedTuple):
    """What is to be run, and with how many threads."""

    graph: Graph
    about: str  # the architecture and all else that the graph was made from
    threads: int

    def key(self) -> str:
        """A hash of all that decides the speed."""
        machine = (platform.machine(), cpu_name(), str(os.cpu_count()), str(self.threads))
        versions = (f"{name} {package_version(name)}" for name in PACKAGES)
        parts = (__version__, self.about, *machine, *versions)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def images(self, case: Case) -> PixelBatch:
        """Noise to measure with: one image, or two for each thread."""
        count = 1 if case == "single images" else 2 * self.threads
        shape = (count, *self.graph.image, self.graph.channels)
        return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)  # (B, H, W, C)


EngineBuilders = Mapping[str, Lazy[Engine]]  # by the name of their kind


class AutoEngine:
    """Whichever engine is quickest for the batch at hand, once there were more than a few images."""

    def __init__(self, graph: Graph, about: str, threads: Threads = "torch") -> None:
        self._question = Workload(graph, about, thread_count(threads))
        self._built: EngineBuilders = {kind_of(each): self._lazily(each) for each in CANDIDATES}
        self._choice = Lazy(self._choose)
        self._first: Lazy[Engine] | None = self._lazily(READY_ENGINE)
        self._lock, self._seen = Lock(), 0

    def run(self, pixels: PixelBatch) -> FloatArray:
        first = self._first
        if first is not None and self._are_few(len(pixels)):
            return first.get().run(pixels)
        best = self._choice.get().best("single images" if len(pixels) < 2 else "batches")
        return self._built[best].get().run(pixels)

    def settle(self) -> None:
        """Leave no more images to the first engine: many are to come."""
        self._first = None

    def _are_few(self, images: int) -> bool:
        """Whether there were but a few with these."""
        with self._lock:
            self._seen += images
            if self._seen > FEW_IMAGES:
                self.settle()
            return self._seen <= FEW_IMAGES

    def _choose(self) -> EngineChoice:
        choice = choose_engine(self._question, self._built, cache_folder("engines"))
        self._built = {best: self._built[best] for best in map(choice.best, CASES)}  # the others are let go
        return choice

    def _lazily(self, kind: EngineKind) -> Lazy[Engine]:
        return Lazy(partial(kind.build, self._question.graph, self._question.threads))


def choose_engine(question: Workload, built: EngineBuilders, folder: Path) -> EngineChoice:
    """The choice that was made before, or one that is made now and kept; either way it is told."""
    key = question.key()
    path = folder / f"{key}.json"
    found = read_choice(path, key)
    if found is not None:
        best = " and ".join(f"{found.best(case)} for {case}" for case in CASES)
        log.info(f"as measured before, the engine is {best}")
        return found
    found = measure_engines(question, built, key)
    for line in found.told():
        log.info(line)
    if not found.failed:
        save_choice(path, found)
    return found


def measure_engines(question: Workload, built: EngineBuilders, key: str) -> EngineChoice:
    """Try every engine that can run the graph."""
    log.info("measuring which engine is quickest for this model; this is done once")
    noise = {case: question.images(case) for case in CASES}
    engines: dict[str, Engine] = {}
    passed_over: dict[str, str] = {}
    failed: dict[str, str] = {}
    for each in CANDIDATES:
        kind = kind_of(each)
        try:
            each.check(question.graph)
            for pixels in noise.values():
                built[kind].get().run(pixels)  # to warm up
        except ConfigError as error:
            passed_over[kind] = error.message
        except Exception as error:  # of a package that is not ours, and has errors of its own; there are others
            failed[kind] = str(error)
        else:
            engines[kind] = built[kind].get()
    if not engines:
        hint = "ask for one by its name to see all of it: engine=eager"
        why = "; ".join(rejection_lines(passed_over, failed))
        raise ConfigError(f"no engine can run this model: {why}", code="config.no_engine", where="engine", hint=hint)
    seconds = {case: time_engines(engines, pixels) for case, pixels in noise.items()}
    return EngineChoice(key=key, seconds=seconds, passed_over=passed_over, failed=failed)


def rejection_lines(passed_over: Mapping[str, str], failed: Mapping[str, str]) -> list[str]:
    """Why engines do not take part, a line each."""
    unfit = [f"{kind} was passed over: {why}" for kind, why in passed_over.items()]
    return unfit + [f"{kind} was passed over, for it failed: {why}" for kind, why in failed.items()]


def time_engines(engines: Mapping[str, Engine], pixels: PixelBatch) -> dict[str, float]:
    """Seconds an image of the quickest round of each. What disturbs a round only makes it slower, and by turns it
    disturbs all alike."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            started = time.perf_counter()
            engine.run(pixels)
            found[name].append((time.perf_counter() - started) / len(pixels))
    return {name: min(seconds) for name, seconds in found.items()}


def read_choice(path: Path, key: str) -> EngineChoice | None:
    """The choice in a file, if it is whole and is about this."""
    try:
        found = EngineChoice.from_json(path.read_bytes())
        known = {kind_of(each) for each in CANDIDATES}
        if found.key == key and all(set() < {*found.seconds.get(case, ())} <= known for case in CASES):
            return found
    except FileNotFoundError:
        return None
    except (OSError, ConfigError):
        pass
    log.info(f"{path} is damaged, so the engines are measured again")
    return None


def save_choice(path: Path, choice: EngineChoice) -> None:
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


def package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def parse_engine(name: str) -> EngineKind | None:
    """The engine of that name with its defaults; nothing for `auto`, which is none."""
    kinds = {kind_of(kind()): kind for kind in union_members(EngineConfig)}
    if name == AUTO:
        return None
    if name not in kinds:
        choices = (AUTO, *kinds)
        message = f"expected {format_choices(choices)}, got {name!r}"
        raise ConfigError(message, code="config.unknown_name", where="engine", hint=did_you_mean(name, choices))
    return kinds[name]()


def build_engine(wanted: EngineKind | None, loaded: Loaded, answer: OutputKind, merging: Merging) -> Engine:
    graph = graph_around(loaded, answer, merging)
    if wanted is not None:
        return wanted.build(graph)
    about = (loaded.bundle.model.to_json(), str(graph.image), merging.to_json())
    return AutoEngine(graph, "\n".join(about))
