"""The predictor: a model that is ready to answer.  B images, H x W pixels, C channels, K classes, D width.

Prediction: images in, what a model makes of them out, a batch at a time.  B images, K numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from vitral.core.errors import ConfigError, WeightsError
from vitral.inference.batches import Batch, read_batches
from vitral.inference.engines.engine import (
    AUTO,
    Engine,
    EngineKind,
    FloatArray,
    Lazy,
    OutputKind,
    PixelBatch,
    Undecided,
    kind_of,
)
from vitral.inference.exported import ENGINES, Export, is_export, load_engine, read_export
from vitral.inference.image_refs import FileSource, ImageRef
from vitral.inference.writers import Sink, probabilities, topk
from vitral.weights.hub import refuse_empty

if TYPE_CHECKING:
    from vitral.inference.graph.token_merging import Merging
    from vitral.weights.bundle import Bundle
    from vitral.weights.load import Loaded


class Count(NamedTuple):
    """How many images were answered, and how many could not be read."""

    answered: int
    failed: int


def predict(
    see: Callable[[PixelBatch], FloatArray], batches: Iterable[Batch], sink: Sink, hear: Callable[[Batch], None]
) -> Count:
    """Have the sink take what `see` makes of each batch; `hear` is told of a batch before it is answered."""
    answered = failed = 0
    for batch in batches:
        hear(batch)
        numbers = see(batch.pixels) if len(batch.pixels) else np.zeros((0, 1), dtype=np.float32)  # (B, K)
        _check_finite(batch, numbers)
        sink.write(batch, numbers)
        answered, failed = answered + len(batch.pixels), failed + len(batch.failed)
    return Count(answered, failed)


def _check_finite(batch: Batch, numbers: FloatArray) -> None:
    """An answer that is no number is the fault of the weights, and no file could hold it."""
    strange = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(strange):
        message = "what the model makes of it is infinite or not a number"
        hint = "take weights from before training went astray"
        raise WeightsError(message, code="weights.not_finite", where=batch.good[strange[0]], hint=hint)


BATCH_SIZE = 32


class Prediction(NamedTuple):
    """What an image was found to be of: the likeliest classes first, and how likely each is."""

    name: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


class Ready(NamedTuple):
    """What a predictor is made of."""

    bundle: "Bundle | Export"
    engines: Mapping[OutputKind, Lazy[Engine]]


class Predictor:
    """A model that is ready to answer: `Predictor("runs/photos").predict(["cat.jpg"])`.

    The engine is the name of one, or one with its settings, or `auto`: at once for a few images, and for more the
    quickest, once it was found. A predictor never changes, any thread may use it, and a batch may have any number of
    images. Engines are made when they are first needed: `warm_up` has it done now.

    A folder of `vitral export` is a model too. It is ready sooner, for torch has no part in it, and on its own engine.
    """

    __slots__ = ("_engines", "bundle")
    bundle: "Bundle | Export"  # either has classes, a task and the preprocessing
    _engines: Mapping[OutputKind, Lazy[Engine]]

    def __init__(
        self,
        source: "str | Path | Loaded",
        engine: str | EngineKind = AUTO,
        merging: "Merging | None" = None,
    ) -> None:
        if isinstance(source, str):
            refuse_empty(source)
        folder = Path(source).expanduser() if isinstance(source, str | Path) else None
        if folder and is_export(folder):
            ready = prepare_export(folder, engine, merging)
        else:
            ready = prepare_model(source, engine, merging)
        object.__setattr__(self, "bundle", ready.bundle)
        object.__setattr__(self, "_engines", ready.engines)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a predictor never changes; make another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a predictor never changes; make another one")

    def logits(self, pixels: PixelBatch) -> FloatArray:
        """The logits of the classes (B, K) for images (B, H, W, C) as `bundle.preprocessing` makes them."""
        if not self.bundle.classes:
            message = f"this model was made for {self.bundle.task}, and names no classes"
            raise ConfigError(message, code="config.unsupported", where="model", hint="ask for its features")
        return self._run("logits", pixels)

    def probabilities(self, pixels: PixelBatch) -> FloatArray:
        """How likely each class is (B, K); the numbers of an image sum to one."""
        return probabilities(self.logits(pixels))

    def features(self, pixels: PixelBatch) -> FloatArray:
        """The vectors behind the logits (B, D)."""
        return self._run("features", pixels)

    @property
    def width(self) -> int:
        """How many numbers a vector of features has."""
        self._engine("features")
        if isinstance(self.bundle, Export):
            return self.bundle.width
        from vitral.inference.graph.graph import width_of

        return width_of(self.bundle.model)

    def predict(self, images: str | Path | Iterable[str | Path], top: int = 5) -> list[Prediction]:
        """The likeliest classes of each file, or of the only one; the first that cannot be read is an error."""
        if top < 1:
            raise ConfigError(f"expected at least 1, got {top}", code="config.out_of_range", where="top")
        paths = [images] if isinstance(images, str | Path) else images
        files = (ImageRef(str(path), FileSource(str(path))) for path in paths)
        found: list[Prediction] = []
        for batch in read_batches(files, self.bundle.preprocessing, BATCH_SIZE):
            for error in batch.failed.values():
                raise error
            found += map(self._named, batch.good, topk(self.logits(batch.pixels), top))
        return found

    def warm_up(self, *sizes: int, answer: OutputKind = "logits") -> None:
        """Have all made that batches of these sizes need, so that the first of them is as quick as the next.

        Logits are what names and probabilities are made of; features have an engine of their own.
        """
        engine = self._engine(answer if self.bundle.classes else "features").get()
        if isinstance(engine, Undecided):
            engine.settle()
        for size in sizes or (1,):
            engine.run(np.zeros((size, *self._shape), dtype=np.uint8))

    @property
    def _shape(self) -> tuple[int, int, int]:
        needs = self.bundle.preprocessing
        return (*needs.image_size, needs.decoding.channels)

    def _named(self, name: str, found: Sequence[tuple[int, float]]) -> Prediction:
        return Prediction(
            name, tuple(self.bundle.classes[place] for place, _ in found), tuple(chance for _, chance in found)
        )

    def _run(self, answer: OutputKind, pixels: PixelBatch) -> FloatArray:
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != self._shape:
            height, width, channels = self._shape
            message = f"expected uint8 (B, {height}, {width}, {channels}), got {pixels.dtype} {pixels.shape}"
            raise ConfigError(
                message, code="config.wrong_type", where="pixels", hint="make them with bundle.preprocessing.pixels"
            )
        return self._engine(answer).get().run(np.ascontiguousarray(pixels))

    def _engine(self, answer: OutputKind) -> Lazy[Engine]:
        if answer not in self._engines:
            message, hint = f"an export that gives no {answer}", "give the model that it was made of"
            raise ConfigError(message, code="config.unsupported", where="model", hint=hint)
        return self._engines[answer]


def prepare_export(folder: Path, engine: str | EngineKind, merging: "Merging | None") -> Ready:
    """An export, on the engine that it was made for."""
    notes = read_export(folder)
    own = ENGINES[notes.kind]
    if (engine if isinstance(engine, str) else kind_of(engine)) not in {AUTO, own}:
        message = f"this export was made for {own}, and runs on no other"
        raise ConfigError(
            message, code="config.conflict", where="engine", hint="leave it out, or export the model anew"
        )
    if merging is not None:
        message = "an export has the layers that it was made with, and merges no patches"
        raise ConfigError(message, code="config.conflict", where="merging", hint="give the model that it was made of")
    return Ready(notes, {notes.answer: Lazy(partial(load_engine, folder, notes))})


def prepare_model(source: "str | Path | Loaded", engine: str | EngineKind, merging: "Merging | None") -> Ready:
    """A model of torch, on any engine."""
    from vitral.inference.engines.auto import build_engine, parse_engine
    from vitral.inference.graph.graph import EVERY_TOKEN
    from vitral.weights.load import Loaded, load

    wanted = parse_engine(engine) if isinstance(engine, str) else engine
    # A model of the caller's may be trained on, and this is to stay what it was.
    loaded = Loaded(deepcopy(source.model), source.bundle) if isinstance(source, Loaded) else load(source)
    answers: tuple[OutputKind, ...] = ("logits", "features")
    return Ready(
        loaded.bundle,
        {each: Lazy(partial(build_engine, wanted, loaded, each, merging or EVERY_TOKEN)) for each in answers},
    )
