"""Batches of images: the same for any number of workers and processes, and from any step on.

B images, C channels, H rows, W columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.core.rng import Purpose, rng_for, uniform_for
from vitral.data.datasets.arrays import ArrayStore
from vitral.data.datasets.torch_dataset import gives_tensors
from vitral.data.decoding.decode import EncodedImage, open_image
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading import shared_memory
from vitral.data.loading.sampler import Indices, Order, SamplingPlan
from vitral.data.loading.shared_memory import CachedImage, DecodedCache, SharedArray
from vitral.data.loading.workers import PREFETCH, WorkerPool
from vitral.data.samples import SPLITS, Item, PackedNames, Samples, Split, Store
from vitral.data.transforms.crop import CropBatch, CropConfig, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import Decodable, decode_and_crop
from vitral.data.transforms.resize import crop_and_resize_batch

DRAW_AHEAD = 2_000  # approximate number of in-memory images whose crops are drawn together


class Augmentation(Protocol):
    """Changes the pixels of an image, not its size."""

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

    def apply(self, image: Decodable, rng: np.random.Generator) -> Pixels:
        """One random view of an image (H, W, C)."""
        pixels = decode_and_crop(image, self.crop.plan(image.size, self.image_size, rng))
        for augment in self.augment:
            pixels = augment.apply(pixels, rng)
        return pixels


class Batch(NamedTuple):
    """Images, labels, and their indices in the items of the loader."""

    images: Tensor  # (B, C, H, W), uint8; float32 as they are where a dataset gives float tensors
    labels: Tensor  # (B,), int64
    indices: Tensor  # (B,), int64


@dataclass(frozen=True)
class BatchWriter:
    """Writes the rows of batches: read, decode, crop, augment, copy into the ring of batches."""

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
        if gives_tensors(self.store):
            self.ring.array[slot, row] = self.store.tensor(self.names[index], self.ring.array.shape[2:])
            return
        rng = rng_for(self.plan.seed, Purpose.VIEW, self.plan.epoch(step), index)
        image = CachedImage(self.cache, index, lambda: self._open(index))
        self.ring.array[slot, row] = self.pipeline.apply(image, rng)

    def _open(self, index: int) -> EncodedImage:
        name = self.names[index]
        return open_image(self.store.read(name), self.store.address(name), self.pipeline.decoding)


@dataclass(frozen=True)
class InMemoryImages:
    """Images of one size in one array, cropped and resized a batch at a time.

    The batches have the bits that `BatchWriter` would give row by row, in a fraction of the time.
    """

    images: Pixels  # (images, H, W, C)
    rows: Indices  # the image of each item
    crop: RandomResizedCrop | Resize
    image_size: Size
    plan: SamplingPlan
    _drawn: dict[int, CropBatch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def batch(self, step: int) -> Tensor:
        """The images of the batch of a step, (B, C, H, W), uint8."""
        if step not in self._drawn:
            self._draw(step)
        rows = self.rows[self.plan.indices(step)]
        return crop_and_resize_batch(self.images, rows, self._drawn[step], self.image_size, self.crop.filter)

    def _draw(self, step: int) -> None:
        """Draw the crops of this step and of some following steps of the same epoch."""
        epoch = self.plan.epoch(step)
        stop = min(step + max(1, DRAW_AHEAD // self.plan.max_rows), (epoch + 1) * self.plan.steps_per_epoch)
        indices = [self.plan.indices(each) for each in range(step, stop)]
        numbers = uniform_for(self.plan.seed, Purpose.VIEW, epoch, np.concatenate(indices), self.crop.draws)
        boxes, flips = self.crop.plan_batch(Size(*self.images.shape[1:3]), numbers)
        ends = np.cumsum([len(each) for each in indices])[:-1]
        self._drawn.clear()
        self._drawn.update(enumerate(map(CropBatch, np.split(boxes, ends), np.split(flips, ends)), start=step))


class Loader:
    """Batches of the items, numbered by steps."""

    def __init__(
        self,
        items: Sequence[Item],
        store: Store,
        pipeline: ImagePipeline,
        plan: SamplingPlan,
        workers: int = 0,
        cache_bytes: int = shared_memory.CACHE_BYTES,
        context: shared_memory.Context = shared_memory.DEFAULT_CONTEXT,
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
        if not self.workers and self._in_memory:
            for step in range(start, stop):
                yield self._batch(step, self._in_memory.batch(step))
            return
        if self.cache.memory is not shared_memory.process_memory(self.cache_bytes, self.context):  # a worker was killed
            self.cache = self._create_cache()
        shape = (PREFETCH, self.plan.max_rows, *self.pipeline.image_size, self.pipeline.decoding.channels)
        ring = shared_memory.create_shared(shape, "float32" if gives_tensors(self.store) else "uint8", self.context)
        work = BatchWriter(self.names, self.store, self.pipeline, self.plan, self.cache, ring)
        pool = WorkerPool(work, range(start, stop), self.workers, self.context)
        try:
            for step, slot in enumerate(pool.slots(), start):
                images = ring.array[slot, : work.rows(step)].copy()  # the slot is written again
                yield self._batch(step, torch.from_numpy(images).permute(0, 3, 1, 2))
        finally:
            if not pool.close():
                shared_memory.discard_memory(self.cache_bytes, self.context)

    def epoch(self, number: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        steps = self.plan.steps_per_epoch
        return self.batches(number * steps, (number + 1) * steps)

    def _create_cache(self) -> DecodedCache:
        memory = shared_memory.process_memory(self.cache_bytes, self.context)
        return DecodedCache(len(self.labels), self.pipeline.decoding, memory, self.context)

    @cached_property
    def _in_memory(self) -> InMemoryImages | None:
        """The items as in-memory images, if they are arrays and the pipeline has a crop that works on batches."""
        crop, store = self.pipeline.crop, self.store
        if self.pipeline.augment or not isinstance(crop, RandomResizedCrop | Resize):
            return None
        names = (self.names[index] for index in range(len(self.names)))
        found = store.rows(names) if isinstance(store, ArrayStore) else None
        if found is None or found[0].shape[-1] != self.pipeline.decoding.channels:
            return None
        return InMemoryImages(*found, crop, self.pipeline.image_size, self.plan)

    def _batch(self, step: int, images: Tensor) -> Batch:
        indices = torch.from_numpy(self.plan.indices(step).copy())
        return Batch(images, self.labels[indices], indices)
