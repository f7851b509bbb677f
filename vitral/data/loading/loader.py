"""Batches of images: the same for any number of workers and processes, and from any step on.

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
from vitral.data.datasets.arrays import ArrayStore
from vitral.data.decoding.decode import EncodedImage, open_image
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.cache import (
    CACHE_BYTES,
    CachedImage,
    DecodedCache,
    create_cache,
    discard_memory,
    process_memory,
)
from vitral.data.loading.in_memory import ImageTable, InMemoryImages
from vitral.data.loading.sampler import Order, SamplingPlan
from vitral.data.loading.shared_memory import DEFAULT_CONTEXT, Context, SharedArray, create_shared
from vitral.data.loading.workers import PREFETCH, WorkerPool
from vitral.data.samples import SPLITS, Item, PackedNames, Samples, Split, Store
from vitral.data.transforms.crop import CropConfig, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import decode_and_crop


class Augmentation(Protocol):
    """A change of the pixels of an image that keeps its size."""

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """Return changed pixels; the input is not modified."""
        ...


@dataclass(frozen=True)
class ImagePipeline:
    """How an image file becomes the image of a batch: decoding, crop, augmentations."""

    image_size: Size
    decoding: Decoding
    crop: CropConfig
    augment: tuple[Augmentation, ...] = ()


class Batch(NamedTuple):
    """Images, labels, and their indices in the items of the loader."""

    images: Tensor  # (B, C, H, W), uint8
    labels: Tensor  # (B,), int64
    indices: Tensor  # (B,), int64


@dataclass(frozen=True)
class BatchWriter:
    """Writes one row of a batch: read, decode, crop, augment, copy into the ring of batches."""

    names: PackedNames
    store: Store
    pipeline: ImagePipeline
    plan: SamplingPlan
    cache: DecodedCache
    ring: SharedArray  # (PREFETCH, B, H, W, C)

    def rows(self, step: int) -> int:
        return len(self.plan.indices(step))

    def name(self, step: int, row: int) -> str:
        return self.store.address(self.names[int(self.plan.indices(step)[row])])

    def write_row(self, step: int, row: int, slot: int) -> None:
        index = int(self.plan.indices(step)[row])
        rng = rng_for(self.plan.seed, Purpose.VIEW, self.plan.epoch(step), index)
        image = CachedImage(self.cache, index, lambda: self._open(index))
        pixels = decode_and_crop(image, self.pipeline.crop.plan(image.size, self.pipeline.image_size, rng))
        for augment in self.pipeline.augment:
            pixels = augment.apply(pixels, rng)
        self.ring.array[slot, row] = pixels

    def _open(self, index: int) -> EncodedImage:
        name = self.names[index]
        return open_image(self.store.read(name), self.store.address(name), self.pipeline.decoding)


class Loader:
    """Batches of the items, numbered by steps."""

    def __init__(
        self,
        items: Sequence[Item],
        store: Store,
        pipeline: ImagePipeline,
        plan: SamplingPlan,
        workers: int = 0,
        cache_bytes: int = CACHE_BYTES,
        context: Context = DEFAULT_CONTEXT,
    ) -> None:
        if workers < 0:
            message = f"expected 0 or more, got {workers}"
            raise ConfigError(message, code="config.out_of_range", where="workers", hint="use 0, or one per core")
        self.store, self.pipeline, self.plan = store, pipeline, plan
        self.workers, self.cache_bytes, self.context = workers, cache_bytes, context
        self.names = PackedNames.of(item.name for item in items)
        self.labels = torch.tensor([item.label for item in items])
        self.cache = self._create_cache()

    @classmethod
    def of(
        cls,
        samples: Samples,
        split: Split,
        pipeline: ImagePipeline,
        order: Order,
        batch: int,
        seed: int = 0,
        workers: int = 0,
    ) -> "Loader":
        """A loader of one split in one process."""
        items = samples.of(split)
        if not items:
            held = ", ".join(each for each in SPLITS if samples.of(each))
            message = f"split {split!r} has no images; splits with images: {held}"
            raise ConfigError(message, code="config.empty_split", where="split", hint="choose another")
        plan = SamplingPlan(np.array([item.label for item in items], dtype=np.int64), order, batch, seed)
        return cls(items, samples.store, pipeline, plan, workers)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the steps from `start` up to `stop`. Several such iterators may be open at once."""
        if self.cache.memory is not process_memory(self.cache_bytes, self.context):  # a worker was killed
            self.cache = self._create_cache()
        steps, ring = range(start, stop), self._ring()
        work = BatchWriter(self.names, self.store, self.pipeline, self.plan, self.cache, ring)
        if not self.workers and self._in_memory:
            for step in steps:
                yield self._labeled(step, self._in_memory.images(step))
            return
        if not self.workers:
            for step in steps:
                for row in range(work.rows(step)):
                    work.write_row(step, row, 0)
                yield self._batch(step, 0, ring)
            return
        pool = WorkerPool(work, steps, self.workers, self.context)
        try:
            for step, slot in zip(steps, pool.slots(), strict=True):
                yield self._batch(step, slot, ring)
        finally:
            if not pool.close():
                discard_memory(self.cache_bytes, self.context)

    def epoch(self, number: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        steps = self.plan.steps_per_epoch
        return self.batches(number * steps, (number + 1) * steps)

    def _create_cache(self) -> DecodedCache:
        memory = process_memory(self.cache_bytes, self.context)
        return create_cache(len(self.labels), self.pipeline.decoding.channels, memory, self.context)

    def _ring(self) -> SharedArray:
        shape = (PREFETCH, self.plan.max_rows, *self.pipeline.image_size, self.pipeline.decoding.channels)
        return create_shared(shape, "uint8", self.context)

    @cached_property
    def _in_memory(self) -> InMemoryImages | None:
        """The items as in-memory images, if they are arrays and the pipeline has a crop that works on batches."""
        crop, store = self.pipeline.crop, self.store
        if (
            self.pipeline.augment
            or not isinstance(crop, RandomResizedCrop | Resize)
            or not isinstance(store, ArrayStore)
        ):
            return None
        found = store.rows(self.names[index] for index in range(len(self.names)))
        if found is None or found[0].shape[-1] != self.pipeline.decoding.channels:
            return None
        return InMemoryImages(ImageTable(*found), crop, self.pipeline.image_size, self.plan)

    def _batch(self, step: int, slot: int, ring: SharedArray) -> Batch:
        images = ring.array[slot, : len(self.plan.indices(step))].copy()  # the ring is filled anew
        return self._labeled(step, torch.from_numpy(images).permute(0, 3, 1, 2))

    def _labeled(self, step: int, images: Tensor) -> Batch:
        indices = torch.from_numpy(self.plan.indices(step).copy())
        return Batch(images, self.labels[indices], indices)
