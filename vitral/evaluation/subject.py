"""What is judged: a model with its bundle, and images it has not learned from.  N images of a split, D width.

Training images divided into parts of like classes, to choose by.  N images.
Fast engines, as they are handed in from outside.  B images, H x W pixels, C channels, K classes.
Whether a model and a set of images are of the same classes and of the same preprocessing.
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
from vitral.core.config import Size
from vitral.core.errors import ConfigError, DataError
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Sequential
from vitral.data.samples import SPLITS, Samples, Split
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.feature_cache import FeatureCache, cache_key
from vitral.evaluation.outputs import Predictions, check_finite, collect_outputs, eval_mode, predict
from vitral.models.base import Model
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel
from vitral.weights.tensors import safetensors_chunks

Labels = NDArray[np.int64]


def stratified_folds(labels: Labels, folds: int, seed: int) -> NDArray[np.int64]:
    """The fold, counted from 0, of each image (N,): all have as many images of a class, or one more."""
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    found = np.empty(len(labels), dtype=np.int64)
    found[np.concatenate(classes)] = np.arange(len(labels)) % folds  # dealt class after class, like cards
    return found  # (N,)


Pixels = NDArray[np.uint8]  # (B, H, W, C)
Logits = NDArray[np.float32]  # (B, K)
EngineFunction = Callable[[Pixels], Logits]  # a fast engine, which answers


class MergingEngineFactory(Protocol):
    """Fast engines for a model, in which every layer merges some of its tokens."""

    @property
    def engine(self) -> str:
        """Which kind of engine they are."""
        ...

    def check(self, bundle: Bundle) -> None:
        """Refuse a model whose tokens cannot be merged."""
        ...

    def tokens_left(self, bundle: Bundle, per_layer: int) -> int:
        """How many tokens the last layer sees when each layer merges so many."""
        ...

    def build(self, loaded: LoadedModel, per_layer: int) -> EngineFunction:
        """An engine in which each layer merges so many."""
        ...


class NoEngineFactory:
    """What stands there where no engine was handed in."""

    engine = "none"

    def check(self, bundle: Bundle) -> None:
        message = "no fast engine was handed in"
        raise ConfigError(message, code="config.missing_value", where="tools.fewer", hint="use vitral.evaluate")

    def tokens_left(self, bundle: Bundle, per_layer: int) -> int:
        raise NotImplementedError

    def build(self, loaded: LoadedModel, per_layer: int) -> EngineFunction:
        raise NotImplementedError


MAX_NAMES = 8  # of a list, in a message
FEATURES_HINT = "judge its features, which need no classes: --with knn,linear"


def match_labels(samples: Samples, bundle: Bundle) -> Tensor:
    """For each class of the data (K,), the label that the model has for the class of that name.

    DataError, with both lists, if the model does not have one of them.
    """
    if samples.classes == bundle.classes:
        return torch.arange(len(samples.classes))
    missing = [name for name in samples.classes if name not in set(bundle.classes)]
    if missing:
        raise DataError(
            f"the model does not know {len(missing):,} of the {len(samples.classes):,} classes of the data: "
            f"{shorten(missing)}. The data has {shorten(samples.classes)}. The model has "
            f"{shorten(bundle.classes)}",
            code="data.unknown_class",
            where=samples.where,
            hint=f"give data of the model's classes, or {FEATURES_HINT}",
        )
    counts = Counter(bundle.classes)
    if twice := [name for name in samples.classes if counts[name] > 1]:
        message = f"the model has more than one class of the name {shorten(twice)}: labels cannot be matched by name"
        hint = "name the classes of the data in the model's order, all of them"
        raise DataError(message, code="data.ambiguous_class", where=samples.where, hint=hint)
    numbers = {name: label for label, name in enumerate(bundle.classes)}
    return torch.tensor([numbers[name] for name in samples.classes])  # (K,)


def check_has_head(bundle: Bundle, judge: str) -> None:
    """Refuse a model that gives no answers."""
    if bundle.task != "classify":
        message = f"{judge} needs a head that names classes, and the model, whose task is {bundle.task!r}, has none"
        raise ConfigError(message, code="config.unsupported", where=f"--with {judge}", hint=FEATURES_HINT)


def check_same_preprocessing(needed: Preprocessing, given: Preprocessing) -> None:
    """Refuse what the weights do not expect, each field that differs with both values."""
    ours, theirs = needed.model_dump(mode="json"), given.model_dump(mode="json")
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        told = "; ".join(
            f"{name} is {_brief(theirs[name])}, the model needs {_brief(ours[name])}" for name in differing
        )
        hint = "leave it out, as the bundle has its own; other sizes of images are judged by --with resolution"
        raise ConfigError(told, code="config.conflict", where="preprocessing", hint=hint)


def shorten(names: Sequence[str]) -> str:
    """`ant, bee, cat and 7 more`."""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES]) or 'none'}{more}"


def _brief(value: object) -> str:
    """Plain data as one reads it: `224x224`, `kind=center_crop, fraction=0.875`."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_brief(inner)}" for name, inner in value.items())
    if isinstance(value, list) and value and all(isinstance(side, int) for side in value):
        return "x".join(map(str, value))
    return str(value)


# A bar for so many of something; what it gives is called with how many more are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def no_progress(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """Progress for nobody."""
    yield lambda count: None


class EvaluationContext(NamedTuple):
    """What an evaluation works with. None of it changes what is found, but for the seed, and for speed the engine."""

    device: torch.device
    batch_size: int
    workers: int
    seed: int
    cache: FeatureCache
    progress: Progress
    merging_engines: MergingEngineFactory = NoEngineFactory()


class LabeledFeatures(NamedTuple):
    """What the model sees in each image of a split, in their order, and what they are of."""

    values: Tensor  # (N, D), float32
    labels: Tensor  # (N,), int64, those of the data


@dataclass(frozen=True)
class SubjectModel:
    """A model on its device, and the split of a set that it is judged by."""

    model: Model
    bundle: Bundle
    samples: Samples
    split: Split
    context: EvaluationContext
    _features: dict[Split, LabeledFeatures] = field(default_factory=dict, init=False, repr=False)
    _predictions: dict[Size, Predictions] = field(default_factory=dict, init=False, repr=False)

    @property
    def train_size(self) -> Size:
        """The size of images that the model was trained with."""
        return self.bundle.preprocessing.image_size

    def features(self, split: Split) -> LabeledFeatures:
        """The features of a split, one vector an image: from the cache, or made once."""
        if split not in self._features:
            labels = torch.tensor([item.label for item in self.samples.of(split)])
            make = lambda: self._extract(split)  # noqa: E731
            values = self.context.cache.features(lambda: self._key(split), len(labels), make)
            self._features[split] = LabeledFeatures(values, labels)
        return self._features[split]

    def predictions(self, image: Size) -> Predictions:
        """The model's answers to its split in images of a size; the labels are the model's."""
        if image not in self._predictions:
            loader = self._loader(self.split, image)
            with self.context.progress(f"answers at {image}", len(loader.labels)) as advance:
                found = predict(
                    self.model, loader, self.bundle.preprocessing.normalize, self.context.device, _alone, advance
                )
            self._predictions[image] = found._replace(labels=match_labels(self.samples, self.bundle)[found.labels])
        return self._predictions[image]

    def engine_predictions(self, ask: EngineFunction, message: str) -> Predictions:
        """The answers of an engine to the split, in images of the trained size; the labels are the model's."""
        loader = self._loader(self.split, self.train_size)
        found = []
        with self.context.progress(message, len(loader.labels)) as advance:
            for batch in loader.epoch():
                found.append(ask(np.ascontiguousarray(batch.images.permute(0, 2, 3, 1).numpy())))  # (B, K)
                advance(len(batch.labels))
        labels = match_labels(self.samples, self.bundle)[loader.labels]
        return Predictions(torch.from_numpy(np.concatenate(found)), labels, torch.arange(len(labels)))

    def check_classes(self, judge: str) -> None:
        """Refuse to judge answers that are about other classes, or that there are none of."""
        check_has_head(self.bundle, judge)
        match_labels(self.samples, self.bundle)

    def check_training_images(self, judge: str) -> None:
        """Refuse to learn from no images: at least two are needed, to choose anything by."""
        found = len(self.samples.of("train"))
        if found < 2:
            held = ", ".join(f"{len(self.samples.of(each)):,} {each}" for each in SPLITS if self.samples.of(each))
            raise DataError(
                f"{judge} learns from the split 'train', which has {found} images; this set has {held}",
                code="data.too_few",
                where=self.samples.where,
                hint="give a set with training images, or use --with accuracy",
            )

    def _loader(self, split: Split, image: Size) -> Loader:
        needs, items = self.bundle.preprocessing, self.samples.of(split)
        pixels, usual = image.height * image.width, self.train_size.height * self.train_size.width
        batch = max(
            1, min(self.context.batch_size, self.context.batch_size * usual // pixels)
        )  # larger images, fewer at a time
        plan = SamplingPlan(np.array([item.label for item in items], dtype=np.int64), Sequential(), batch, seed=0)
        sight = ImagePipeline(image, needs.decoding, needs.crop)
        # Each picture is seen once, so none is worth keeping.
        return Loader(items, self.samples.store, sight, plan, self.context.workers, cache_bytes=0)

    def _extract(self, split: Split) -> Tensor:
        loader = self._loader(split, self.train_size)
        with self.context.progress(f"features of {split}", len(loader.labels)) as advance, eval_mode(self.model):
            found = collect_outputs(
                self.model.forward_pooled,
                loader,
                self.bundle.preprocessing.normalize,
                self.context.device,
                _alone,
                advance,
            )
        check_finite(found.values, "features of")
        return found.values  # (N, D)

    def _key(self, split: Split) -> str:
        """A hash of all that decides the features: the weights, how they are used, and the bytes of the images."""
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


def _alone(rows: Tensor) -> Tensor:
    """The rows of all processes, where there is one."""
    return rows
