"""The predictor: a model that is ready to answer.  B images, H x W pixels, C channels, K classes, D width."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from vitral.config import members
from vitral.deploy.auto import AutoEngine, kind_of
from vitral.deploy.engine import Bytes, Engine, Numbers
from vitral.deploy.engines.kind import EngineKind, Lazily
from vitral.deploy.engines.union import EngineConfig
from vitral.deploy.graph import EVERY_TOKEN, Answer, graph_around
from vitral.deploy.likely import likeliest, probabilities
from vitral.deploy.merging import Merging
from vitral.deploy.places import File, Image
from vitral.deploy.reading import batches
from vitral.errors import ConfigError, either, nearest
from vitral.weights.bundle import Bundle
from vitral.weights.load import Loaded, load

AUTO = "auto"
BATCH = 32


class Prediction(NamedTuple):
    """What an image was found to be of: the likeliest classes first, and how likely each is."""

    name: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


class Predictor:
    """A model that is ready to answer: `Predictor("runs/photos").predict(["cat.jpg"])`.

    The engine is the name of one, or one with its settings, or `auto`: at once for a few images, and for more the
    quickest, once it was found. A predictor never changes, any thread may use it, and a batch may have any number of
    images. Engines are made when they are first needed: `warm_up` has it done now.
    """

    __slots__ = ("_engines", "bundle")
    bundle: Bundle
    _engines: Mapping[Answer, Lazily[Engine]]

    def __init__(
        self, source: str | Path | Loaded, engine: str | EngineKind = AUTO, merging: Merging = EVERY_TOKEN
    ) -> None:
        wanted = engine_named(engine) if isinstance(engine, str) else engine
        # A model of the caller's may be trained on, and this is to stay what it was.
        loaded = Loaded(deepcopy(source.model), source.bundle) if isinstance(source, Loaded) else load(source)
        answers: tuple[Answer, ...] = ("logits", "features")
        engines = {each: Lazily(partial(engine_for, wanted, loaded, each, merging)) for each in answers}
        object.__setattr__(self, "bundle", loaded.bundle)
        object.__setattr__(self, "_engines", engines)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a predictor never changes; make another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a predictor never changes; make another one")

    def logits(self, pixels: Bytes) -> Numbers:
        """The logits of the classes (B, K) for images (B, H, W, C) as `bundle.preprocessing` makes them."""
        if not self.bundle.classes:
            what = f"this model was made for {self.bundle.task}, and names no classes"
            raise ConfigError(what, where="model", remedy="ask for its features")
        return self._run("logits", pixels)

    def probabilities(self, pixels: Bytes) -> Numbers:
        """How likely each class is (B, K); the numbers of an image sum to one."""
        return probabilities(self.logits(pixels))

    def features(self, pixels: Bytes) -> Numbers:
        """The vectors behind the logits (B, D)."""
        return self._run("features", pixels)

    def predict(self, images: Iterable[str | Path], top: int = 5) -> list[Prediction]:
        """The likeliest classes of each file; the first that cannot be read is an error."""
        if top < 1:
            raise ConfigError(f"expected at least 1, got {top}", where="top")
        files = (Image(str(image), File(str(image))) for image in images)
        found: list[Prediction] = []
        for batch in batches(files, self.bundle.preprocessing, BATCH):
            for error in batch.failed.values():
                raise error
            found += map(self._named, batch.good, likeliest(self.logits(batch.pixels), top))
        return found

    def warm_up(self, *sizes: int, answer: Answer = "logits") -> None:
        """Have all made that batches of these sizes need, so that the first of them is as quick as the next.

        Logits are what names and probabilities are made of; features have an engine of their own.
        """
        engine = self._engines[answer if self.bundle.classes else "features"].get()
        if isinstance(engine, AutoEngine):
            engine.settle()
        for size in sizes or (1,):
            engine.run(np.zeros((size, *self._shape), dtype=np.uint8))

    @property
    def _shape(self) -> tuple[int, int, int]:
        needs = self.bundle.preprocessing
        return (*needs.image, needs.decoding.channels)

    def _named(self, name: str, found: Sequence[tuple[int, float]]) -> Prediction:
        return Prediction(
            name, tuple(self.bundle.classes[place] for place, _ in found), tuple(chance for _, chance in found)
        )

    def _run(self, answer: Answer, pixels: Bytes) -> Numbers:
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != self._shape:
            height, width, channels = self._shape
            what = f"expected uint8 (B, {height}, {width}, {channels}), got {pixels.dtype} {pixels.shape}"
            raise ConfigError(what, where="pixels", remedy="make them with bundle.preprocessing.pixels")
        return self._engines[answer].get().run(np.ascontiguousarray(pixels))


def engine_named(name: str) -> EngineKind | None:
    """The engine of that name with its defaults; nothing for `auto`, which is none."""
    kinds = {kind_of(kind()): kind for kind in members(EngineConfig)}
    if name == AUTO:
        return None
    if name not in kinds:
        choices = (AUTO, *kinds)
        what = f"expected {either(choices)}, got {name!r}"
        raise ConfigError(what, where="engine", remedy=nearest(name, choices))
    return kinds[name]()


def engine_for(wanted: EngineKind | None, loaded: Loaded, answer: Answer, merging: Merging) -> Engine:
    graph = graph_around(loaded, answer, merging)
    if wanted is not None:
        return wanted.build(graph)
    about = (loaded.bundle.model.to_json(), str(graph.image), merging.to_json())
    return AutoEngine(graph, "\n".join(about))
