"""Prediction: `Predictor`, a model that is ready to run, and `predict`, the stream behind `vitral predict`.

B images, H x W pixels, C channels, K classes, D width.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, TypeGuard, Unpack, cast, overload

import numpy as np

from vitral.core.activation import probabilities
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.imports import is_imported
from vitral.core.manifest import file_policy, hashed_early
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.image_objects import ImageLike, image_bytes
from vitral.data.decoding.isolation import IsolatedDecoder, Isolation
from vitral.data.transforms.preprocessing import Preprocessing, image_name
from vitral.inference.batches import Batch, read_batches
from vitral.inference.engines.engine import (
    AUTO,
    BaseEngine,
    Engine,
    FloatArray,
    Lazy,
    NamedEngine,
    OutputKind,
    PixelBatch,
    kind_of,
)
from vitral.inference.exported import ENGINES, Export, is_export, load_engine, read_export
from vitral.inference.inputs import Encoded, FileSource, ImageRef, find_images
from vitral.inference.writers import WHOLE, Prediction, Shard, make_predictions, name_classes, topk
from vitral.weights.hub import check_not_empty

if TYPE_CHECKING:
    from torch import Tensor

    from vitral.inference.engines.auto import AutoEngine
    from vitral.inference.graph.token_merging import Merging
    from vitral.models.base import Model
    from vitral.weights.bundle import Bundle
    from vitral.weights.load import LoadedModel

log = logging.getLogger("vitral")
BATCH_SIZE = 32
EXACT = 1e-3  # how much an input may differ from one that was made of 8 bits
COUNTED = 32  # images that are listed first: fewer are a known number


class TrainedRun(Protocol):
    """What `vitral.train` returns."""

    @property
    def path(self) -> Path:
        """The folder."""
        ...


class ReadingOptions(TypedDict, total=False):
    """How a predictor reads images."""

    lenient: bool
    max_pixels: int | None
    isolation: Isolation | None


class PredictorOptions(ReadingOptions, total=False):
    """Keywords of `Predictor`."""

    engine: str | BaseEngine
    merging: "Merging | None"
    trust: bool
    verify_files: bool
    require_signature: str | Path


class Ready(NamedTuple):
    """What a predictor is made of."""

    bundle: "Bundle | Export"
    model: "Model | None"  # none of an export
    engine: str  # its name, or auto
    engines: Mapping[OutputKind, Lazy[Engine]]


@dataclass(init=False, eq=False, repr=False, frozen=True)
class Predictor:
    """A model that is ready to run: `predictor = Predictor("runs/photos")`, then `predictor("cat.jpg")`.

    It is made from a path, a hub id, a run, what `vitral.load` returns, or a model and its bundle. The engine is a
    name, a config, or `auto`. With `auto` a few images are run by torch, which is ready at once; more by the engine
    that is fastest on this machine. A stream of images has one engine from its first image to its last, and so have
    all calls of `logits`, `probabilities` and `features`. Engines are built at their first use: `warm_up` builds them
    now. A predictor is immutable and thread-safe.

    A folder of `vitral export` is a model too. It has its own engine, and starts faster, since torch is not imported.
    `trust` allows a model with classes of your own to import them. A `lenient` predictor uses what decodes of damaged
    images, and names them; `max_pixels` is the size above which images are refused, by default that of the bundle.
    With an `Isolation` files are decoded in child processes, which live as long as the predictor.
    `verify_files` and `require_signature` are those of `vitral.load`.
    """

    bundle: "Bundle | Export"  # either has classes, a task and the preprocessing
    _model: "Model | None"
    _engine_name: str
    _engines: Mapping[OutputKind, Lazy[Engine]]
    _decode: ImageDecoder

    def __init__(
        self,
        source: "str | Path | LoadedModel | Model | TrainedRun",
        bundle: "Bundle | None" = None,
        *,
        engine: str | BaseEngine = AUTO,
        merging: "Merging | None" = None,
        trust: bool = False,
        verify_files: bool = True,
        require_signature: str | Path = "",
        **reading: Unpack[ReadingOptions],
    ) -> None:
        if isinstance(source, str):
            check_not_empty(source)
        folder = Path(source).expanduser() if isinstance(source, str | Path) else None
        with trusted(trust), file_policy(verify_files, require_signature):
            if folder and is_export(folder):
                ready = prepare_export(folder, engine, merging)
            else:
                with hashed_early(folder) if folder else nullcontext():
                    ready = prepare_model(load_source(source, bundle), engine, merging)
        changes = {"lenient": reading.get("lenient"), "pixel_limit": reading.get("max_pixels")}
        if any(changes.values()):
            needs = ready.bundle.preprocessing.with_decoding(**{name: new for name, new in changes.items() if new})
            ready = ready._replace(bundle=ready.bundle.model_copy(update={"preprocessing": needs}))
        for field, value in zip(("bundle", "_model", "_engine_name", "_engines"), ready, strict=True):
            object.__setattr__(self, field, value)  # it is immutable
        isolation = reading.get("isolation")
        object.__setattr__(self, "_decode", isolation.build() if isolation else decode_image)

    @overload  # a text is a sequence of texts too
    def __call__(self, images: ImageLike, top: int = 5) -> Prediction: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, images: "Sequence[ImageLike | Tensor]", top: int = 5) -> list[Prediction]: ...
    @overload
    def __call__(self, images: "Tensor", top: int = 5) -> Prediction | list[Prediction]: ...

    def __call__(self, images: object, top: int = 5) -> Prediction | list[Prediction]:
        """The top classes of an image, or a list of them for a list of images.

        An image is a path, the bytes of a file, a PIL image or an array (H, W, C). A tensor (C, H, W) is used as it is:
        it was made by `bundle.transform`, or like it; a tensor (B, C, H, W) is a list of such.
        """
        if isinstance(images, list | tuple):
            return self._predict_objects(images, top)
        if is_tensor(images) and images.ndim == 4:
            return self._predict_objects(list(images), top)
        return self._predict_objects([images], top)[0]

    def logits(self, pixels: PixelBatch) -> FloatArray:
        """The logits (B, K) of images (B, H, W, C) as `bundle.preprocessing` makes them."""
        self._check_classes()
        return self._run("logits", pixels)

    def probabilities(self, pixels: PixelBatch) -> FloatArray:
        """The probability of each class (B, K)."""
        return probabilities(self.logits(pixels), self.bundle.activation)

    def features(self, pixels: PixelBatch) -> FloatArray:
        """The features before the head (B, D)."""
        return self._run("features", pixels)

    @property
    def model(self) -> "Model | None":
        """The model in evaluation mode, not to be changed; none of an export."""
        return self._model

    @property
    def width(self) -> int:
        """The width D of the features."""
        self._lazy_engine("features")
        if isinstance(self.bundle, Export):
            return self.bundle.width
        from vitral.inference.graph.graph import feature_width

        return feature_width(self.bundle.model)

    @property
    def engine(self) -> str:
        """The name of the engine; with `auto` that of the engine chosen for `logits`, once they were computed."""
        engine = self._engines["logits" if "logits" in self._engines and self.bundle.classes else "features"]
        if self._engine_name == AUTO and engine.is_made:
            return cast("AutoEngine", engine.get()).name
        return self._engine_name

    def predict(self, images: str | Path | Iterable[str | Path], top: int = 5) -> list[Prediction]:
        """The top classes of each file, or of the only one. A file that cannot be read raises its error."""
        paths = [images] if isinstance(images, str | Path) else images
        refs = (ImageRef(str(path), FileSource(str(path))) for path in paths)
        return list(PredictionStream(self, refs).predictions(top, strict=True))

    def _predict_objects(self, images: Sequence[object], top: int) -> list[Prediction]:
        tensors = {index: image for index, image in enumerate(images) if is_tensor(image)}
        others = (image for index, image in enumerate(images) if index not in tensors)
        stream = PredictionStream(self, (self._ref(image) for image in others))
        found = stream.predictions(top, strict=True)
        rows = iter(self._predict_tensors(list(tensors.values()), top) if tensors else ())
        return [next(rows if index in tensors else found) for index in range(len(images))]

    def _ref(self, image: object) -> ImageRef:
        name = image_name(image)
        return ImageRef(name, Encoded(image_bytes(image, name, self.bundle.preprocessing.decoding.channels)))

    def _predict_tensors(self, images: "list[Tensor]", top: int) -> list[Prediction]:
        check_top(top)
        self._check_classes()
        if self._model is None:
            engine, logits = self.engine, self.logits(restore_pixels(images, self.bundle.preprocessing))
        else:
            engine, logits = "model", run_model(self._model, images)
        return [
            Prediction("tensor", *name_classes(row, self.bundle.classes), engine)
            for row in topk(logits, top, self.bundle.activation)
        ]

    def warm_up(self, *sizes: int, output: OutputKind = "logits") -> None:
        """Build all that batches of these sizes need, so that the first batch is as fast as the next."""
        engine = self._lazy_engine(output if self.bundle.classes else "features").get()
        for size in sorted(sizes or (1,), reverse=True):  # the largest first: it decides the engine of auto
            engine.run(np.zeros((size, *self.pixel_shape), dtype=np.uint8))

    def select_engine(self, output: OutputKind, images: int | None, batch_size: int) -> NamedEngine:
        """The engine for a stream of this many images (None: unknown), in batches of this size."""
        if output == "logits":
            self._check_classes()
        engine = self._lazy_engine(output).get()
        if self._engine_name == AUTO:
            return cast("AutoEngine", engine).select(images, batch_size)
        return NamedEngine(self._engine_name, engine)

    def read_batches(self, images: Iterable[ImageRef], batch_size: int) -> Iterator[Batch]:
        """The images as the model takes them, in batches."""
        return read_batches(images, self.bundle.preprocessing, batch_size, self._decode)

    def close(self) -> None:
        """End the child processes of an `Isolation`. Files that they are decoding are reported as errors."""
        if isinstance(self._decode, IsolatedDecoder):
            self._decode.close()

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """The shape (H, W, C) of an image as `logits`, `probabilities` and `features` take it."""
        needs = self.bundle.preprocessing
        return (*needs.image_size, needs.decoding.channels)

    def _check_classes(self) -> None:
        if not self.bundle.classes:
            message = f"this model was made for {self.bundle.task} and has no classes"
            hint = "use its features: Predictor.features, or --features FILE.npz"
            raise ConfigError(message, code="config.unsupported", where="model", hint=hint)

    def _run(self, output: OutputKind, pixels: PixelBatch) -> FloatArray:
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != self.pixel_shape:
            height, width, channels = self.pixel_shape
            message = f"expected uint8 (B, {height}, {width}, {channels}), got {pixels.dtype} {pixels.shape}"
            hint = "make them with bundle.preprocessing.pixels"
            raise ConfigError(message, code="config.wrong_type", where="pixels", hint=hint)
        return self._lazy_engine(output).get().run(np.ascontiguousarray(pixels))

    def _lazy_engine(self, output: OutputKind) -> Lazy[Engine]:
        if output not in self._engines:
            message, hint = f"this export does not compute {output}", "use the model that it was made from"
            raise ConfigError(message, code="config.unsupported", where="model", hint=hint)
        return self._engines[output]


class PredictionStream:
    """Images on their way through a model: read ahead, in batches, by one engine that is chosen before the first."""

    def __init__(self, predictor: Predictor, images: Iterable[ImageRef], batch_size: int = BATCH_SIZE) -> None:
        self.predictor, self.batch_size = predictor, batch_size
        images = iter(images)
        first = list(islice(images, COUNTED))
        self._images = chain(first, images)
        self._count = len(first) if len(first) < COUNTED else None  # None: many, or unknown
        self.engine = ""  # the name, once it is chosen

    def outputs(self, output: OutputKind) -> Iterator[tuple[Batch, FloatArray]]:
        """Each batch, and the logits or features (B, K) of those of its images that could be read."""
        self.engine, engine = self.predictor.select_engine(output, self._count, self.batch_size)
        return self._outputs(engine)

    def _outputs(self, engine: Engine) -> Iterator[tuple[Batch, FloatArray]]:
        for batch in self.predictor.read_batches(self._images, self.batch_size):
            outputs = engine.run(batch.pixels) if len(batch.pixels) else np.zeros((0, 1), dtype=np.float32)  # (B, K)
            _check_finite(batch, outputs)
            yield batch, outputs

    def predictions(self, top: int, strict: bool = False) -> Iterator[Prediction]:
        """A prediction for each image, in order. With `strict` a file that cannot be read raises its error."""
        check_top(top)
        bundle = self.predictor.bundle
        for batch, logits in self.outputs("logits"):
            if strict and batch.failed:
                raise next(iter(batch.failed.values()))
            yield from make_predictions(batch, logits, bundle.classes, top, bundle.activation, self.engine)


def predict(
    model: "str | Path | LoadedModel | TrainedRun | Predictor",
    inputs: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    batch_size: int = BATCH_SIZE,
    strict: bool = False,
    shard: Shard = WHOLE,
    **options: "Unpack[PredictorOptions]",
) -> Iterator[Prediction]:
    """What `vitral predict MODEL INPUT... --format jsonl` prints, as a stream of predictions.

    Inputs are files, folders, patterns, manifests, tar shards or names of datasets. An image that cannot be read has
    its error in its prediction; with `strict` the error is raised. The options are those of `Predictor`.
    """
    sources = [inputs] if isinstance(inputs, str | Path) else inputs
    if isinstance(model, Predictor) and options:
        message, hint = "a predictor has its own engine", f"pass {', '.join(options)} to Predictor instead"
        raise ConfigError(message, code="config.conflict", where="model", hint=hint)
    predictor = model if isinstance(model, Predictor) else Predictor(model, **options)
    images = (image for image in find_images(map(str, sources), None) if shard.contains(image.name))
    return PredictionStream(predictor, images, batch_size).predictions(top, strict)


def _check_finite(batch: Batch, outputs: FloatArray) -> None:
    """Raise WeightsError for outputs that are infinite or not a number, which no format can hold."""
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
    if len(bad):
        message = "the model's output for this image is infinite or not a number"
        hint = "use weights from before training diverged"
        raise WeightsError(message, code="weights.not_finite", where=batch.readable[bad[0]], hint=hint)


def prepare_export(folder: Path, engine: str | BaseEngine, merging: "Merging | None") -> Ready:
    """An export, with the engine that it was made for."""
    opened = read_export(folder)
    for line in opened.check.messages():
        log.info(line)
    notes, own = opened.notes, ENGINES[opened.notes.kind]
    if (engine if isinstance(engine, str) else kind_of(engine)) not in {AUTO, own}:
        message, hint = f"this export runs on {own} alone", "leave it out, or export the model again"
        raise ConfigError(message, code="config.conflict", where="engine", hint=hint)
    if merging is not None:
        message, hint = "an export cannot merge tokens", "use the model that it was made from"
        raise ConfigError(message, code="config.conflict", where="merging", hint=hint)
    return Ready(notes, None, own, {notes.answer: Lazy(partial(load_engine, folder, opened))})


def load_source(
    source: "str | Path | LoadedModel | Model | TrainedRun", bundle: "Bundle | None"
) -> "Callable[[], LoadedModel]":
    """Loads the model of a predictor. A model in memory is copied, since the caller may go on training it."""
    from vitral.models.base import Model
    from vitral.weights.load import LoadedModel, load

    if isinstance(source, LoadedModel):
        return lambda: LoadedModel(deepcopy(source.model).eval(), bundle or source.bundle)
    if isinstance(source, Model):
        if bundle is None:
            message, hint = "a model alone has no classes or preprocessing", "use Predictor(model, bundle)"
            raise ConfigError(message, code="config.wrong_type", where="source", hint=hint)
        return lambda: LoadedModel(deepcopy(source).eval(), bundle)
    if bundle is not None:
        message, hint = "a saved model already has its bundle", "pass the path alone"
        raise ConfigError(message, code="config.conflict", where="bundle", hint=hint)
    where = source if isinstance(source, str | Path) else getattr(source, "path", None)
    if where is None:
        message = f"expected a path, a run, or what vitral.load returns, got {type(source).__name__}"
        raise ConfigError(message, code="config.wrong_type", where="source", hint='use Predictor("runs/photos")')
    return lambda: load(where)


def is_tensor(image: object) -> "TypeGuard[Tensor]":
    """Whether it is a tensor of torch, which is not imported for it."""
    if not is_imported("torch"):
        return False
    import torch

    return isinstance(image, torch.Tensor)


def check_top(top: int) -> None:
    """Raise ConfigError unless this many classes can be given."""
    if top < 1:
        raise ConfigError(f"expected at least 1, got {top}", code="config.out_of_range", where="top")


def run_model(model: "Model", images: "list[Tensor]", output: OutputKind = "logits") -> FloatArray:
    """The logits (B, K) or features (B, D) of images (C, H, W), which may differ in size, as the model sees them."""
    import torch

    from vitral.models.head import NoHead

    run = model if output == "logits" or isinstance(model.config.head, NoHead) else model.forward_pooled
    size = BATCH_SIZE if len({image.shape for image in images}) == 1 else 1
    device = next(model.parameters()).device
    with torch.inference_mode():
        batches = (torch.stack(images[start : start + size]) for start in range(0, len(images), size))
        return torch.cat([run(batch.to(device)).float().cpu() for batch in batches]).numpy()


def restore_pixels(images: "list[Tensor]", needs: Preprocessing) -> PixelBatch:
    """The pixels (B, H, W, C) that `bundle.transform` made these inputs (C, H, W) from; an export takes no others."""
    import torch

    from vitral.models.base import check_images

    batch = torch.stack(images).cpu()  # (B, C, H, W)
    check_images(batch, needs.decoding.channels)
    levels = needs.normalize.restore(batch)
    if levels.min() < 0 or levels.max() > 255 or (needs.normalize.apply(levels.byte()) - batch).abs().max() > EXACT:
        message, hint = (
            "an export takes 8-bit images, but these tensors do not come from such images",
            "use the model it was made from",
        )
        raise ConfigError(message, code="config.unsupported", where="images", hint=hint)
    return levels.byte().permute(0, 2, 3, 1).numpy()


def prepare_model(load: "Callable[[], LoadedModel]", engine: str | BaseEngine, merging: "Merging | None") -> Ready:
    """A model with any engine."""
    from vitral.inference.engines.auto import build_engine, parse_engine
    from vitral.inference.graph.graph import NO_MERGING
    from vitral.models.first_use import finish_check

    config = parse_engine(engine) if isinstance(engine, str) else engine
    loaded = load()
    finish_check(loaded.model)  # a server must not start with a damaged model
    outputs: tuple[OutputKind, ...] = ("logits", "features")
    return Ready(
        loaded.bundle,
        loaded.model,
        kind_of(config) if config else AUTO,
        {each: Lazy(partial(build_engine, config, loaded, each, merging or NO_MERGING)) for each in outputs},
    )
