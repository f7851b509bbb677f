"""The model under evaluation with its dataset: predictions, features, and checks that the two belong together.

B images of a batch, N of a split, H x W pixels, C channels, D width, K classes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral import __version__
from vitral.core.activation import Activation, probabilities
from vitral.core.config import Size
from vitral.core.errors import ConfigError, DataError, WeightsError
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Sequential
from vitral.data.samples import SPLITS, Item, Samples, Split, format_names
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.evaluation.feature_cache import FeatureCache, cache_key
from vitral.models.base import Model
from vitral.models.hooks import eval_mode
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel
from vitral.weights.tensors import safetensors_chunks

ROWS = 4096  # processed at a time


class Outputs(NamedTuple):
    """One row per image, in the order of the dataset, from all processes."""

    values: Tensor  # (N, ...), float32
    labels: Tensor  # (N,), int64
    indices: Tensor  # (N,), int64, into the items of the loader


class Predictions(NamedTuple):
    """The logits of every image, in the order of the dataset."""

    logits: Tensor  # (N, K), float32
    labels: Tensor  # (N,), int64
    indices: Tensor  # (N,), int64, into the items of the loader
    activation: Activation = "softmax"

    @property
    def predicted(self) -> Tensor:
        """The predicted class of each image (N,); of equal logits the first."""
        return torch.from_numpy(self.logits.numpy().argmax(axis=1))  # torch promises no order among equals

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class (N,), float64."""
        return torch.cat([chunk.amax(dim=1) for chunk in self.probabilities()])

    def probabilities(self) -> Iterator[Tensor]:
        """The probabilities (rows, K), float64, in chunks: those of a large dataset do not fit in memory twice."""
        return (probabilities(rows.double(), self.activation) for rows in self.logits.split(ROWS))


TensorMap = Callable[[Tensor], Tensor]
Advance = Callable[[int], None]  # is called with the size of each batch that is done


def predict(
    model: Model, loader: Loader, scaling: Normalize, device: torch.device, gather: TensorMap, advance: Advance
) -> Predictions:
    """The model's predictions, on the CPU."""
    with eval_mode(model):
        return Predictions(*collect_outputs(model, loader, scaling, device, gather, advance), model.activation)


@torch.no_grad()  # in inference mode, what a model keeps between calls could never again be trained with
def collect_outputs(
    function: TensorMap, loader: Loader, scaling: Normalize, device: torch.device, gather: TensorMap, advance: Advance
) -> Outputs:
    """The outputs of a function of normalized images (B, C, H, W), on the CPU. `gather` joins rows of all processes.

    Every process takes part in every batch, even with no images, since a sharded model waits for all of them.
    """
    assert isinstance(loader.plan.order, Sequential), "other orders skip or repeat images"
    batches: list[Outputs] = []
    for batch in loader.epoch():
        values = function(scaling.prepare(batch.images.to(device))).float()  # (B, ...)
        batches.append(Outputs(values, batch.labels.to(device), batch.indices.to(device)))
        advance(len(batch.labels))
    joined = Outputs(*(gather(torch.cat(rows)).cpu() for rows in zip(*batches, strict=True)))
    order = joined.indices.argsort()
    assert torch.equal(joined.indices[order], torch.arange(len(loader.plan.labels))), "each image occurs once"
    return Outputs(*(rows[order] for rows in joined))


def check_finite(rows: Tensor, name: str) -> None:
    """Raise if rows (N, ...) of `logits` or `features` have values that are not finite."""
    count = int((~rows.isfinite()).any(dim=1).sum())
    if count:
        message = f"the {name} of {count:,} of {len(rows):,} images are not finite"
        raise WeightsError(message, code="weights.not_finite", hint="use a checkpoint from before training diverged")


Labels = NDArray[np.int64]


def stratified_folds(labels: Labels, folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each image (N,), stratified by class."""
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    assigned = np.empty(len(labels), dtype=np.int64)
    assigned[np.concatenate(classes)] = np.arange(len(labels)) % folds  # class after class, round-robin
    return assigned  # (N,)


Pixels = NDArray[np.uint8]  # (B, H, W, C)
Logits = NDArray[np.float32]  # (B, K)
EngineFunction = Callable[[Pixels], Logits]  # an inference engine


class MergingEngineFactory(Protocol):
    """Builds inference engines with token merging."""

    @property
    def engine(self) -> str:
        """The kind of engine."""

    def check(self, bundle: Bundle) -> None:
        """Raise for models whose tokens cannot be merged."""

    def tokens_left(self, bundle: Bundle, per_layer: int) -> int:
        """How many tokens the last layer sees when each layer merges this many."""

    def build(self, loaded: LoadedModel, per_layer: int) -> EngineFunction:
        """An engine in which each layer merges this many tokens."""


MAX_NAMES = 8  # listed in a message
FEATURES_HINT = "evaluate its features, which need no classes: --with knn,linear"


def match_labels(samples: Samples, bundle: Bundle) -> Tensor:
    """The model's label for each class of the data (K,), matched by name, or by number as all models of the data do."""
    if samples.classes == bundle.classes or are_matched_by_number(samples, bundle):
        return torch.arange(len(samples.classes))
    counts = Counter(bundle.classes)
    if missing := [name for name in samples.classes if name not in counts]:
        message = (
            f"the model lacks {len(missing):,} of the {len(samples.classes):,} classes of the data: "
            f"{format_names(missing, MAX_NAMES)}. The data has {format_names(samples.classes, MAX_NAMES)}. "
            f"The model has {format_names(bundle.classes, MAX_NAMES) or 'none'}"
        )
        hint = f"use data with the model's classes, or {FEATURES_HINT}"
        raise DataError(message, code="data.unknown_class", where=samples.where, hint=hint)
    if repeated := [name for name in samples.classes if counts[name] > 1]:
        message = (
            f"the model has several classes named {format_names(repeated, MAX_NAMES)}: labels cannot be matched by name"
        )
        hint = "give the data all classes of the model, in the model's order"
        raise DataError(message, code="data.ambiguous_class", where=samples.where, hint=hint)
    numbers = {name: label for label, name in enumerate(bundle.classes)}
    return torch.tensor([numbers[name] for name in samples.classes])  # (K,)


def are_matched_by_number(samples: Samples, bundle: Bundle) -> bool:
    """Whether the data has published class numbers, and the model as many classes under other names."""
    return (
        samples.numbered and len(samples.classes) == len(bundle.classes) and set(samples.classes) != set(bundle.classes)
    )


def check_has_head(bundle: Bundle, evaluator: str) -> None:
    """Raise for models that do not classify."""
    if bundle.task != "classify":
        message = f"{evaluator} needs a classification head, but this model (task {bundle.task!r}) has none"
        raise ConfigError(message, code="config.unsupported", where=f"--with {evaluator}", hint=FEATURES_HINT)


def check_same_preprocessing(needed: Preprocessing, given: Preprocessing) -> None:
    """Raise if the preprocessing differs from what the weights need; the message names each differing field."""
    values = {name: (getattr(given, name), getattr(needed, name)) for name in Preprocessing.model_fields}
    differing = [f"{name} is {own}, the model needs {other}" for name, (own, other) in values.items() if own != other]
    if differing:
        message = "; ".join(differing)
        hint = "leave it out: the bundle has its own; use --with resolution for other image sizes"
        raise ConfigError(message, code="config.conflict", where="preprocessing", hint=hint)


# A progress bar of a total; the function it gives is called with how many more are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def no_progress(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """No progress bar."""
    yield lambda count: None


class EvaluationContext(NamedTuple):
    """What an evaluation runs with. Only the seed changes results; the engine changes measured speed."""

    device: torch.device
    batch_size: int
    workers: int
    seed: int
    cache: FeatureCache
    progress: Progress
    merging_engines: MergingEngineFactory | None = None  # only token merging needs it
    ood_data: Samples | None = None  # images unlike the data, which only `ood` needs


class LabeledFeatures(NamedTuple):
    """The features and labels of a split, in its order."""

    values: Tensor  # (N, D), float32
    labels: Tensor  # (N,), int64, of the data


@dataclass(frozen=True)
class SubjectModel:
    """A model on its device, and the split of a dataset that it is evaluated on."""

    model: Model
    bundle: Bundle
    samples: Samples
    split: Split
    context: EvaluationContext
    _features: dict[Split, LabeledFeatures] = field(default_factory=dict, init=False, repr=False)
    _predictions: dict[tuple[Split, Size], Predictions] = field(default_factory=dict, init=False, repr=False)

    @property
    def train_size(self) -> Size:
        """The image size that the model was trained with."""
        return self.bundle.preprocessing.image_size

    def features(self, split: Split) -> LabeledFeatures:
        """The features of a split, from the cache or computed once."""
        if split not in self._features:
            labels = torch.tensor([item.label for item in self.samples.of(split)])
            compute = lambda: self._extract(split)  # noqa: E731
            values = self.context.cache.features(lambda: self._key(split), len(labels), compute)
            self._features[split] = LabeledFeatures(values, labels)
        return self._features[split]

    def predictions(self, image: Size, split: Split | None = None) -> Predictions:
        """The predictions at an image size, of the split evaluated or another; the labels are the model's."""
        split = split or self.split
        if (split, image) not in self._predictions:
            loader = self._loader(split, image)
            message = f"predicting at {image}" if split == self.split else f"predicting {split}"
            with self.context.progress(message, len(loader.labels)) as advance:
                found = predict(self.model, *self._inputs(loader), advance)
            labels = match_labels(self.samples, self.bundle)[found.labels]
            self._predictions[split, image] = found._replace(labels=labels)
        return self._predictions[split, image]

    def engine_predictions(self, engine: EngineFunction, message: str) -> Predictions:
        """The predictions of an engine at the training size; the labels are the model's."""
        loader = self._loader(self.split, self.train_size)
        found = []
        with self.context.progress(message, len(loader.labels)) as advance:
            for batch in loader.epoch():
                found.append(engine(np.ascontiguousarray(batch.images.permute(0, 2, 3, 1).numpy())))  # (B, K)
                advance(len(batch.labels))
        labels = match_labels(self.samples, self.bundle)[loader.labels]
        logits = torch.from_numpy(np.concatenate(found))  # (N, K)
        return Predictions(logits, labels, torch.arange(len(labels)), self.bundle.activation)

    def check_classes(self, evaluator: str) -> None:
        """Raise unless the model has a head with the classes of the data."""
        check_has_head(self.bundle, evaluator)
        match_labels(self.samples, self.bundle)

    def check_training_images(self, evaluator: str) -> None:
        """Raise unless there are at least two training images, the fewest to fit and validate with."""
        count = len(self.samples.of("train"))
        if count < 2:
            held = ", ".join(f"{len(self.samples.of(each)):,} {each}" for each in SPLITS if self.samples.of(each))
            message = f"{evaluator} needs training images, but the split 'train' has {count}; the dataset has {held}"
            hint = "use data with training images, or --with accuracy"
            raise DataError(message, code="data.too_few", where=self.samples.where, hint=hint)

    def _loader(self, split: Split, image: Size) -> Loader:
        return self.loader(self.samples.of(split), image)

    def loader(self, items: Sequence[Item], image: Size) -> Loader:
        """Reads these items once, in their order."""
        needs, most = self.bundle.preprocessing, self.context.batch_size
        pixels, usual = image.height * image.width, self.train_size.height * self.train_size.width
        batch = max(1, min(most, most * usual // pixels))  # fewer at a time if they are larger
        plan = SamplingPlan(np.array([item.label for item in items], dtype=np.int64), Sequential(), batch, seed=0)
        pipeline = ImagePipeline(image, needs.decoding, needs.crop)
        # Each image is read once, so none is cached.
        return Loader(items, self.samples.store, pipeline, plan, self.context.workers, cache_bytes=0)

    def _inputs(self, loader: Loader) -> tuple[Loader, Normalize, torch.device, TensorMap]:
        """The arguments of `collect_outputs` in a single process."""
        return loader, self.bundle.preprocessing.normalize, self.context.device, lambda rows: rows

    def _extract(self, split: Split) -> Tensor:
        loader = self._loader(split, self.train_size)
        with self.context.progress(f"features of {split}", len(loader.labels)) as advance, eval_mode(self.model):
            found = collect_outputs(self.model.forward_pooled, *self._inputs(loader), advance)
        check_finite(found.values, "features")
        return found.values  # (N, D)

    def _key(self, split: Split) -> str:
        """A hash of what the features depend on: the weights, the model, the preprocessing and the image files."""
        needs = self.bundle.preprocessing
        parts = (__version__, self._weights_digest, self.bundle.model.to_json(), needs.to_json())
        with self.context.progress(f"reading {split}", len(self.samples.of(split))) as advance:
            return cache_key(parts, self._read(split, advance))

    def _read(self, split: Split, advance: Callable[[int], None]) -> Iterator[bytes]:
        for item in self.samples.of(split):
            yield self.samples.read(item)
            advance(1)

    @cached_property
    def _weights_digest(self) -> str:
        found = hashlib.sha256()
        for piece in safetensors_chunks(self.model.state_dict()):
            found.update(piece)
        return found.hexdigest()
