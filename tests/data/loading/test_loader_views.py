"""Several views of an image: counted by view, the same for any number of workers and processes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.loading.photos import photos
from tests.data.loading.test_loader_in_memory import IMAGE, Noise
from vitral.core.config import Size
from vitral.core.rng import Purpose, rng_for
from vitral.data.datasets.arrays import ArrayStore, open_arrays
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.loader import Batch, ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Shuffled, World
from vitral.data.samples import Samples
from vitral.data.transforms.augment import (
    ColorJitter,
    RandomBlur,
    RandomColorJitter,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
)
from vitral.data.transforms.crop import RandomCrop, RandomResizedCrop
from vitral.data.transforms.views import MultiCrop, View

JITTER = RandomColorJitter(), RandomGrayscale(), RandomSolarize(), RandomBlur()
VIEWS = MultiCrop(
    first=View(crop=RandomResizedCrop(area=(0.4, 1.0)), augment=JITTER),
    second=View(crop=RandomCrop(padding=2), augment=(ColorJitter(), RandomErasing(probability=0.5))),
    local=View(crop=RandomResizedCrop(area=(0.1, 0.4)), size=Size(6, 8), augment=(RandomGrayscale(probability=0.5),)),
    local_views=3,
)


def loader(samples: Samples, workers: int = 0, world: World | None = None, channels: int = 3) -> Loader:
    items = samples.of("train")
    plan = SamplingPlan(np.array([item.label for item in items]), Shuffled(), 4, 5, world or World())
    views = VIEWS.plan(IMAGE)
    pipeline = ImagePipeline(IMAGE, Decoding(channels=channels), views[0].crop, views[0].augment, views)
    return Loader(items, samples.store, pipeline, plan, workers, cache_bytes=2**18)


class InMemory:
    """An image that notes how it is decoded."""

    def __init__(self, pixels: Pixels) -> None:
        self.size, self.whole, self.calls = Size(*pixels.shape[:2]), pixels, list[Size]()

    def pixels(self, min_size: Size) -> Pixels:
        self.calls.append(min_size)
        return self.whole


def arrays(channels: int = 3) -> Samples:
    return open_arrays("noise", ("even", "odd"), Noise(channels))


def equal(one: Batch, other: Batch) -> bool:
    same = all(torch.equal(*pair) for pair in zip(one.images, other.images, strict=True))
    return same and torch.equal(one.indices, other.indices) and torch.equal(one.labels, other.labels)


def test_a_batch_has_a_tensor_for_each_size(tmp_path: Path) -> None:
    for samples in (photos(tmp_path), arrays()):
        batch = next(loader(samples).batches(0, 1))
        assert [tuple(group.shape) for group in batch.images] == [(4, 2, 3, *IMAGE), (4, 3, 3, 6, 8)]
        assert all(group.dtype == torch.uint8 for group in batch.images)
        seen = {view.contiguous().numpy().tobytes() for group in batch.images for row in group for view in row}
        assert len(seen) == 4 * 5  # no view like another


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_memory_have_the_bits_that_workers_give_row_by_row(channels: int) -> None:
    together, rows = loader(arrays(channels), channels=channels), loader(arrays(channels), 1, channels=channels)
    assert together._in_memory is not None
    for one, other in zip(together.batches(2, 8), rows.batches(2, 8), strict=True):
        assert equal(one, other)


def test_photos_are_the_same_for_workers_processes_and_from_the_middle(tmp_path: Path) -> None:
    samples = photos(tmp_path)
    whole = list(loader(samples).batches(0, 5))
    for found in (loader(samples, 2).batches(0, 5), [*loader(samples).batches(0, 2), *loader(samples).batches(2, 5)]):
        assert all(map(equal, whole, found))
    for rank in (0, 1):
        half = loader(samples, world=World(rank=rank, size=2)).batches(0, 5)
        for one, other in zip(whole, half, strict=True):
            assert all(torch.equal(a[rank::2], b) for a, b in zip(one.images, other.images, strict=True))


def test_a_view_is_drawn_by_seed_epoch_index_and_its_number() -> None:
    samples, step = arrays(), 7
    given = loader(samples)
    batch = next(given.batches(step, step + 1))
    row = 2
    index = int(batch.indices[row])
    assert isinstance(samples.store, ArrayStore)
    found_rows = samples.store.rows([given.names[index]])
    assert found_rows is not None
    image = InMemory(found_rows[0][found_rows[1][0]].copy())  # the store's are read-only, torch wants others
    for number, view in enumerate(given.pipeline.views):
        rng = rng_for(5, Purpose.VIEW, given.plan.epoch(step), index, number)
        expected = ImagePipeline(view.image_size, Decoding(), view.crop, view.augment).apply(image, rng)
        found = batch.images[0][row, number] if number < 2 else batch.images[1][row, number - 2]
        assert torch.equal(torch.from_numpy(expected.copy()).permute(2, 0, 1), found)


def test_an_image_is_decoded_once_for_all_its_views() -> None:
    image = InMemory(np.zeros((40, 60, 3), dtype=np.uint8))
    views = VIEWS.plan(IMAGE)
    pipeline = ImagePipeline(IMAGE, Decoding(), views[0].crop, views[0].augment, views)
    rngs = [np.random.default_rng(number) for number in range(5)]
    found = pipeline.apply_views(image, rngs)
    assert [each.shape for each in found] == [(*IMAGE, 3)] * 2 + [(6, 8, 3)] * 3
    rngs = [np.random.default_rng(number) for number in range(5)]
    needed = [
        view.crop.plan(image.size, view.image_size, rng).min_size(image.size)
        for view, rng in zip(views, rngs, strict=True)
    ]
    assert image.calls == [Size(*map(max, zip(*needed, strict=True)))]
