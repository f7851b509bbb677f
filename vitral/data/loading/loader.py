"""The loader: batches of images, the same whatever the number of workers and processes, from any step on.

B images, C channels, H rows, W columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.core.rng import Purpose, rng_for
from vitral.data.datasets.arrays import Arrays
from vitral.data.decoding.decode import Encoded, opened
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.cache import CACHE_BYTES, CachedImage, DecodedCache, create_cache
from vitral.data.loading.in_memory import ImageTable, InMemoryImages
from vitral.data.loading.sampler import Order, SamplingPlan
from vitral.data.loading.shared_memory import DEFAULT_CONTEXT, Context, SharedArray, create_shared
from vitral.data.loading.workers import PREFETCH, WorkerPool
from vitral.data.samples import SPLITS, Item, Names, Samples, Split, Store
from vitral.data.transforms.crop import CropConfig, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import Picture, sights


class Augmentation(Protocol):
    """A change of pixels that keeps their size."""

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """The changed pixels; those given stay as they are."""
        ...


@dataclass(frozen=True)
class ImagePipeline:
    """How the loader sees a file: what is decoded, which parts are shown, and how they are changed."""

    image: Size
    decoding: Decoding
    view: CropConfig
    augment: tuple[Augmentation, ...] = ()


class Batch(NamedTuple):
    """Images as bytes, and what they are of. Places are those in the items the loader was given."""

    views: tuple[Tensor, ...]  # each (B, C, H, W), uint8
    labels: Tensor  # (B,), int64
    places: Tensor  # (B,), int64

    @property
    def images(self) -> Tensor:
        """The first view, which is the only one unless several crops were asked for."""
        return self.views[0]


@dataclass(frozen=True)
class BatchWriter:
    """The work of one row of a batch: read, decode, look, augment, write into the ring."""

    names: Names
    store: Store
    sight: ImagePipeline
    plan: SamplingPlan
    kept: DecodedCache
    ring: tuple[SharedArray, ...]  # of each view (AHEAD, B, H, W, C)

    def rows(self, step: int) -> int:
        return len(self.plan.places(step))

    def name(self, step: int, row: int) -> str:
        return self.store.address(self.names[int(self.plan.places(step)[row])])

    def fill(self, step: int, row: int, slot: int) -> None:
        place = int(self.plan.places(step)[row])
        rng = rng_for(self.plan.seed, Purpose.VIEW, self.plan.epoch(step), place)
        picture: Picture = CachedImage(self.kept, place, lambda: self._open(place))
        glimpses = self.sight.view.glimpses(picture.size, self.sight.image, rng)
        for pixels, views in zip(sights(picture, glimpses), self.ring, strict=True):
            for augment in self.sight.augment:
                pixels = augment.apply(pixels, rng)  # noqa: PLW2901, each change builds on the one before
            views.array[slot, row] = pixels

    def _open(self, place: int) -> Encoded:
        name = self.names[place]
        return opened(self.store.read(name), self.store.address(name), self.sight.decoding)


class Loader:
    """A stream of batches of the items, numbered by steps."""

    def __init__(
        self,
        items: Sequence[Item],
        store: Store,
        sight: ImagePipeline,
        plan: SamplingPlan,
        workers: int = 0,
        room: int = CACHE_BYTES,
        context: Context = DEFAULT_CONTEXT,
    ) -> None:
        if workers < 0:
            message = f"expected 0 or more, got {workers}"
            raise ConfigError(message, code="config.out_of_range", where="workers", hint="give one for each core")
        self.store, self.sight, self.plan = store, sight, plan
        self.workers, self.room, self.context = workers, room, context
        self.names = Names.of(item.name for item in items)
        self.labels = torch.tensor([item.label for item in items])
        self.kept = self._shelf()
        self.peaceful = True  # no worker was killed, perhaps with the lock of the shelf

    @classmethod
    def of(
        cls,
        samples: Samples,
        split: Split,
        sight: ImagePipeline,
        order: Order,
        batch: int,
        seed: int = 0,
        workers: int = 0,
    ) -> "Loader":
        """A loader of one split in one process."""
        items = samples.of(split)
        if not items:
            held = " and ".join(each for each in SPLITS if samples.of(each))
            message = f"no images in {split!r}, this set has {held}"
            raise ConfigError(message, code="config.empty_split", where="split", hint="choose another")
        plan = SamplingPlan(np.array([item.label for item in items], dtype=np.int64), order, batch, seed)
        return cls(items, samples.store, sight, plan, workers)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from `start` up to `stop`. Several such streams may be open at once."""
        if not self.peaceful:
            self.kept, self.peaceful = self._shelf(), True
        steps, ring = range(start, stop), self._ring()
        work = BatchWriter(self.names, self.store, self.sight, self.plan, self.kept, ring)
        if not self.workers and self._album:
            for step in steps:
                yield self._shown(step, (self._album.images(step),))
            return
        if not self.workers:
            for step in steps:
                for row in range(work.rows(step)):
                    work.fill(step, row, 0)
                yield self._batch(step, 0, ring)
            return
        crew = WorkerPool(work, steps, self.workers, self.context)
        try:
            for step, slot in zip(steps, crew.slots(), strict=True):
                yield self._batch(step, slot, ring)
        finally:
            self.peaceful &= crew.close()

    def epoch(self, number: int = 0) -> Iterator[Batch]:
        """The batches of one epoch."""
        steps = self.plan.epoch_steps
        return self.batches(number * steps, (number + 1) * steps)

    def _shelf(self) -> DecodedCache:
        return create_cache(len(self.labels), self.sight.decoding.channels, self.room, self.context)

    def _ring(self) -> tuple[SharedArray, ...]:
        shapes = [(PREFETCH, self.plan.rows, *size) for size in self.sight.view.outputs(self.sight.image)]
        return tuple(create_shared((*shape, self.sight.decoding.channels), "uint8", self.context) for shape in shapes)

    @cached_property
    def _album(self) -> InMemoryImages | None:
        """The items as an album, where they lie in memory and are seen in a way that an album knows."""
        view, store = self.sight.view, self.store
        if self.sight.augment or not isinstance(view, RandomResizedCrop | Resize) or not isinstance(store, Arrays):
            return None
        found = store.rows(self.names[place] for place in range(len(self.names)))
        if found is None or found[0].shape[-1] != self.sight.decoding.channels:
            return None
        return InMemoryImages(ImageTable(*found), view, self.sight.image, self.plan)

    def _batch(self, step: int, slot: int, ring: tuple[SharedArray, ...]) -> Batch:
        views = (views.array[slot, : len(self.plan.places(step))].copy() for views in ring)  # the ring is filled anew
        return self._shown(step, tuple(torch.from_numpy(view).permute(0, 3, 1, 2) for view in views))

    def _shown(self, step: int, views: tuple[Tensor, ...]) -> Batch:
        places = torch.from_numpy(self.plan.places(step).copy())
        return Batch(views, self.labels[places], places)
