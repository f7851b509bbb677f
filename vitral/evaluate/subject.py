"""What is judged: a model with its bundle, and images it has not learnt from.  N images of a split, D width."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral import __version__
from vitral.config import Size
from vitral.data.loader.loader import Loader, Sight
from vitral.data.loader.order import InOrder
from vitral.data.loader.plan import Plan
from vitral.data.samples import SPLITS, Samples, Split
from vitral.errors import DataError
from vitral.evaluate.answers import Answers, answer, refuse_strange, resting, rows_of
from vitral.evaluate.cache import Cache, key_of
from vitral.evaluate.fewer import Ask, Fewer, NoEngine
from vitral.evaluate.matching import labels_by_name, refuse_headless
from vitral.model.contract import Model
from vitral.weights.bundle import Bundle
from vitral.weights.tensors import pieces

# A bar for so many of something; what it gives is called with how many more are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def silent(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Progress for nobody."""
    yield lambda count: None


class Tools(NamedTuple):
    """What an evaluation works with. None of it changes what is found, but for the seed, and for speed the engine."""

    device: torch.device
    batch: int
    workers: int
    seed: int
    cache: Cache
    progress: Progress
    fewer: Fewer = NoEngine()


class Vectors(NamedTuple):
    """What the model sees in each image of a split, in their order, and what they are of."""

    values: Tensor  # (N, D), float32
    labels: Tensor  # (N,), int64, those of the data


@dataclass(frozen=True)
class Subject:
    """A model on its device, and the split of a set that it is judged by."""

    model: Model
    bundle: Bundle
    samples: Samples
    split: Split
    tools: Tools
    _vectors: dict[Split, Vectors] = field(default_factory=dict, init=False, repr=False)
    _answers: dict[Size, Answers] = field(default_factory=dict, init=False, repr=False)

    @property
    def trained(self) -> Size:
        """The size of images that the model was trained with."""
        return self.bundle.preprocessing.image

    def vectors(self, split: Split) -> Vectors:
        """The features of a split, one vector an image: from the cache, or made once."""
        if split not in self._vectors:
            labels = torch.tensor([item.label for item in self.samples.of(split)])
            make = lambda: self._extracted(split)  # noqa: E731
            values = self.tools.cache.vectors(lambda: self._key(split), len(labels), make)
            self._vectors[split] = Vectors(values, labels)
        return self._vectors[split]

    def answers(self, image: Size) -> Answers:
        """The model's answers to its split in images of a size; the labels are the model's."""
        if image not in self._answers:
            loader = self._loader(self.split, image)
            with self.tools.progress(f"answers at {image}", len(loader.labels)) as advance:
                found = answer(
                    self.model, loader, self.bundle.preprocessing.scaling, self.tools.device, _alone, advance
                )
            self._answers[image] = found._replace(labels=labels_by_name(self.samples, self.bundle)[found.labels])
        return self._answers[image]

    def asked(self, ask: Ask, what: str) -> Answers:
        """The answers of an engine to the split, in images of the trained size; the labels are the model's."""
        loader = self._loader(self.split, self.trained)
        found = []
        with self.tools.progress(what, len(loader.labels)) as advance:
            for batch in loader.epoch():
                found.append(ask(np.ascontiguousarray(batch.images.permute(0, 2, 3, 1).numpy())))  # (B, K)
                advance(len(batch.labels))
        labels = labels_by_name(self.samples, self.bundle)[loader.labels]
        return Answers(torch.from_numpy(np.concatenate(found)), labels, torch.arange(len(labels)))

    def need_classes(self, judge: str) -> None:
        """Refuse to judge answers that are about other classes, or that there are none of."""
        refuse_headless(self.bundle, judge)
        labels_by_name(self.samples, self.bundle)

    def need_training(self, judge: str) -> None:
        """Refuse to learn from no images: at least two are needed, to choose anything by."""
        found = len(self.samples.of("train"))
        if found < 2:
            held = ", ".join(f"{len(self.samples.of(each)):,} {each}" for each in SPLITS if self.samples.of(each))
            raise DataError(
                f"{judge} learns from the split 'train', which has {found} images; this set has {held}",
                code="data.too_few",
                where=self.samples.where,
                remedy="give a set with training images, or use --with accuracy",
            )

    def _loader(self, split: Split, image: Size) -> Loader:
        needs, items = self.bundle.preprocessing, self.samples.of(split)
        pixels, usual = image.height * image.width, self.trained.height * self.trained.width
        batch = max(1, min(self.tools.batch, self.tools.batch * usual // pixels))  # larger images, fewer at a time
        plan = Plan(np.array([item.label for item in items], dtype=np.int64), InOrder(), batch, seed=0)
        sight = Sight(image, needs.decoding, needs.view)
        # Each picture is seen once, so none is worth keeping.
        return Loader(items, self.samples.store, sight, plan, self.tools.workers, room=0)

    def _extracted(self, split: Split) -> Tensor:
        loader = self._loader(split, self.trained)
        with self.tools.progress(f"features of {split}", len(loader.labels)) as advance, resting(self.model):
            found = rows_of(
                self.model.pooled, loader, self.bundle.preprocessing.scaling, self.tools.device, _alone, advance
            )
        refuse_strange(found.values, "features of")
        return found.values  # (N, D)

    def _key(self, split: Split) -> str:
        """A hash of all that decides the features: the weights, how they are used, and the bytes of the images."""
        needs = self.bundle.preprocessing
        parts = (__version__, self._weights, self.bundle.model.to_json(), needs.to_json())
        with self.tools.progress(f"reading {split}", len(self.samples.of(split))) as advance:
            return key_of(parts, self._read(split, advance))

    def _read(self, split: Split, advance: Callable[[int], None]) -> Iterator[bytes]:
        for item in self.samples.of(split):
            yield self.samples.read(item)
            advance(1)

    @cached_property
    def _weights(self) -> str:
        found = hashlib.sha256()
        for piece in pieces(self.model.state_dict()):
            found.update(piece)
        return found.hexdigest()


def _alone(rows: Tensor) -> Tensor:
    """The rows of all processes, where there is one."""
    return rows
