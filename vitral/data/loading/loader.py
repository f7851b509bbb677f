"""Batches of images: the same for any number of workers and processes, and from any step on.

B images, V views of each, C channels, H rows, W columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
from vitral.data.transforms.augment import DrawnAugment
from vitral.data.transforms.crop import CropBatch, CropConfig, RandomCrop, RandomResizedCrop, Resize, ShiftBatch
from vitral.data.transforms.preprocessing import Decodable, decode_and_crop
from vitral.data.transforms.resize import crop_and_resize, crop_and_resize_batch
from vitral.data.transforms.views import Augmentation, ImageView, size_groups

DRAW_AHEAD = 2_000  # approximate number of in-memory images whose crops are drawn together


@dataclass(frozen=True)
class ImagePipeline:
    """How an image file becomes the image of a batch: decoding, crop, augmentations."""

    image_size: Size
    decoding: Decoding
    crop: CropConfig
    augment: tuple[Augmentation, ...] = ()
    views: tuple[ImageView, ...] = ()  # where an image has several; the fields above are those of the first

    def apply(self, image: Decodable, rng: np.random.Generator) -> Pixels:
        """One random view of an image (H, W, C)."""
        pixels = decode_and_crop(image, self.crop.plan(image.size, self.image_size, rng))
        for augment in self.augment:
            pixels = augment.apply(pixels, rng)
        return pixels

    def apply_views(self, image: Decodable, rngs: Sequence[np.random.Generator]) -> list[Pixels]:
        """All views of an image, each (H, W, C), by a generator each. The image is decoded once."""
        drawn = zip(self.views, rngs, strict=True)
        plans = [view.crop.plan(image.size, view.image_size, rng) for view, rng in drawn]
        sides = zip(*(plan.min_size(image.size) for plan in plans), strict=True)
        pixels = image.pixels(Size(*map(max, sides)))
        found = []
        for view, plan, rng in zip(self.views, plans, rngs, strict=True):
            seen = crop_and_resize(pixels, image.size, plan)
            for augment in view.augment:
                seen = augment.apply(seen, rng)
            found.append(seen)
        return found

    def empty_batch(self, count: int) -> "BatchImages":
        """Black images as a task is given them, float32."""
        channels = self.decoding.channels
        if not self.views:
            return torch.zeros(count, channels, *self.image_size)  # (B, C, H, W)
        groups = size_groups(self.views).items()
        return tuple(torch.zeros(count, len(numbers), channels, *size) for size, numbers in groups)

    def row_shape(self) -> tuple[int, ...]:
        """The shape of an image in the ring of batches; several views are one flat row."""
        channels = self.decoding.channels
        if not self.views:
            return (*self.image_size, channels)
        return (sum(view.image_size.height * view.image_size.width * channels for view in self.views),)

    def split_row(self, rows: NDArray[np.uint8]) -> "BatchImages":
        """The images in rows of the ring, (B, *row_shape): (B, C, H, W), or (B, V, C, H, W) for each size of view."""
        if not self.views:
            return torch.from_numpy(rows).permute(0, 3, 1, 2)
        groups, start = [], 0
        for size, numbers in size_groups(self.views).items():
            end = start + len(numbers) * size.height * size.width * self.decoding.channels
            shape = (len(rows), len(numbers), *size, self.decoding.channels)
            groups.append(torch.from_numpy(rows[:, start:end].reshape(shape)).permute(0, 1, 4, 2, 3))
            start = end
        return tuple(groups)


BatchImages = Tensor | tuple[Tensor, ...]  # (B, C, H, W), or (B, V, C, H, W) for each size of several views


class Batch(NamedTuple):
    """BatchImages, labels, and their indices in the items of the loader."""

    images: Any  # BatchImages, uint8; float32 as they are where a dataset gives float tensors
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
    ring: SharedArray  # (PREFETCH, B, *row_shape)

    def rows(self, step: int) -> int:
        return len(self.plan.indices(step))

    def name(self, step: int, row: int) -> str:
        return self.store.address(self.names[int(self.plan.indices(step)[row])])

    def write_row(self, step: int, row: int, slot: int) -> None:
        index = int(self.plan.indices(step)[row])
        if gives_tensors(self.store):
            self.ring.array[slot, row] = self.store.tensor(self.names[index], self.ring.array.shape[2:])
            return
        count = int(self.plan.views(step)[row])
        image = CachedImage(self.cache, index, lambda: self._open(index))
        if not self.pipeline.views:
            rng = rng_for(self.plan.seed, Purpose.VIEW, count, index)
            self.ring.array[slot, row] = self.pipeline.apply(image, rng)
            return
        number = len(self.pipeline.views)
        rngs = [rng_for(self.plan.seed, Purpose.VIEW, count, index, view) for view in range(number)]
        views = self.pipeline.apply_views(image, rngs)
        order = [view for numbers in size_groups(self.pipeline.views).values() for view in numbers]
        self.ring.array[slot, row] = np.concatenate([views[view].reshape(-1) for view in order])

    def _open(self, index: int) -> EncodedImage:
        name = self.names[index]
        return open_image(self.store.read(name), self.store.address(name), self.pipeline.decoding)


@dataclass(frozen=True)
class InMemoryImages:
    """One view of images of one size in one array, cropped and resized a batch at a time, then augmented.

    Augmentations that take a fixed number of draws get those of a batch at once; others are applied one by one. The
    batches have the bits that `BatchWriter` would give row by row, in a fraction of the time.
    """

    images: Pixels  # (images, H, W, C)
    rows: Indices  # the image of each item
    crop: RandomResizedCrop | RandomCrop | Resize
    augment: tuple[Augmentation, ...]
    image_size: Size
    plan: SamplingPlan
    view: int = 0  # of several
    _drawn: dict[int, CropBatch | ShiftBatch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def batch(self, step: int) -> Tensor:
        """The images of the batch of a step, (B, C, H, W), uint8."""
        if step not in self._drawn:
            self._draw(step)
        rows = self.rows[self.plan.indices(step)]
        found = crop_and_resize_batch(self.images, rows, self._drawn[step], self.image_size, self.crop.filter)
        return self._augment(step, found) if self.augment else found

    def _augment(self, step: int, images: Tensor) -> Tensor:
        """The images (B, C, H, W) after their augmentations, each by the generator that has drawn its crop."""
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()  # (B, H, W, C)
        drawn = [augment for augment in self.augment if isinstance(augment, DrawnAugment)]
        if len(drawn) == len(self.augment):
            counts, indices, start = self.plan.views(step), self.plan.indices(step), self.crop.draws
            count = start + sum(augment.draws for augment in drawn)
            numbers = uniform_for(self.plan.seed, Purpose.VIEW, counts, indices, count, self.view)
            for augment in drawn:
                augment.apply_batch(pixels, numbers[:, start : start + augment.draws])
                start += augment.draws
            return torch.from_numpy(pixels).permute(0, 3, 1, 2)
        for row, (view, index) in enumerate(zip(self.plan.views(step), self.plan.indices(step), strict=True)):
            rng = rng_for(self.plan.seed, Purpose.VIEW, int(view), int(index), self.view)
            rng.random(self.crop.draws)
            for each in self.augment:
                pixels[row] = each.apply(pixels[row], rng)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)

    def _draw(self, step: int) -> None:
        """Draw the crops of this step and of some following steps of the same epoch."""
        epoch = self.plan.epoch(step)
        stop = min(step + max(1, DRAW_AHEAD // self.plan.max_rows), (epoch + 1) * self.plan.steps_per_epoch)
        indices = [self.plan.indices(each) for each in range(step, stop)]
        views = np.concatenate([self.plan.views(each) for each in range(step, stop)])
        numbers = uniform_for(self.plan.seed, Purpose.VIEW, views, np.concatenate(indices), self.crop.draws, self.view)
        crops = self.crop.plan_batch(Size(*self.images.shape[1:3]), numbers)
        ends = np.cumsum([0, *map(len, indices)]).tolist()
        self._drawn.clear()
        self._drawn.update(enumerate((crops.part(*each) for each in pairwise(ends)), start=step))


@dataclass(frozen=True)
class InMemoryViews:
    """Several views of images in one array."""

    views: tuple[InMemoryImages, ...]
    groups: tuple[tuple[int, ...], ...]  # the numbers of the views of each size

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The images of the batch of a step, (B, V, C, H, W) for each size, uint8."""
        found = [view.batch(step) for view in self.views]
        return tuple(torch.stack([found[number] for number in numbers], dim=1) for numbers in self.groups)


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
        shape = (PREFETCH, self.plan.max_rows, *self.pipeline.row_shape())
        ring = shared_memory.create_shared(shape, "float32" if gives_tensors(self.store) else "uint8", self.context)
        work = BatchWriter(self.names, self.store, self.pipeline, self.plan, self.cache, ring)
        pool = WorkerPool(work, range(start, stop), self.workers, self.context)
        try:
            for step, slot in enumerate(pool.slots(), start):
                rows = ring.array[slot, : work.rows(step)].copy()  # the slot is written again
                yield self._batch(step, self.pipeline.split_row(rows))
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
    def _in_memory(self) -> InMemoryImages | InMemoryViews | None:
        """The items as in-memory images, if they are arrays and the pipeline has crops that work on batches."""
        pipeline, store = self.pipeline, self.store
        views = pipeline.views or (ImageView(pipeline.image_size, pipeline.crop, pipeline.augment),)
        if not all(isinstance(view.crop, RandomResizedCrop | RandomCrop | Resize) for view in views):
            return None
        names = (self.names[index] for index in range(len(self.names)))
        found = store.rows(names) if isinstance(store, ArrayStore) else None
        if found is None or found[0].shape[-1] != pipeline.decoding.channels:
            return None
        images = tuple(self._view_in_memory(*found, view, number) for number, view in enumerate(views))
        if not pipeline.views:
            return images[0]
        return InMemoryViews(images, tuple(map(tuple, size_groups(views).values())))

    def _view_in_memory(self, images: Pixels, rows: Indices, view: ImageView, number: int) -> InMemoryImages:
        assert isinstance(view.crop, RandomResizedCrop | RandomCrop | Resize)
        if isinstance(view.crop, RandomCrop):
            view.crop.check(view.image_size)
        return InMemoryImages(images, rows, view.crop, view.augment, view.image_size, self.plan, number)

    def _batch(self, step: int, images: BatchImages) -> Batch:
        indices = torch.from_numpy(self.plan.indices(step).copy())
        return Batch(images, self.labels[indices], indices)
