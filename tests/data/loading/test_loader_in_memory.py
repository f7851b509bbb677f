"""In-memory images give the batches that the loader would give row by row."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.data.pictures import noise
from vitral.core.config import Size
from vitral.data.datasets.arrays import ArrayStore, LabeledImages, open_arrays
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Order, Repeated, SamplingPlan, Sequential, Shuffled, World
from vitral.data.samples import Item
from vitral.data.transforms.augment import RandAugment, RandomErasing
from vitral.data.transforms.crop import CenterCrop, CropConfig, RandomCrop, RandomResizedCrop, Resize
from vitral.data.transforms.views import Augmentation

IMAGE, WHOLE = Size(12, 16), Size(14, 15)
SHUFFLED = Shuffled()
ITEMS = 23


@dataclass(frozen=True)
class Noise:
    """A reader of random pictures."""

    channels: int

    def load(self, part: str) -> LabeledImages:
        images = np.stack([noise(*WHOLE, self.channels, seed=seed).astype(np.uint8) for seed in range(ITEMS)])
        gray = self.channels == 1
        return LabeledImages(images[..., 0] if gray else images, (np.arange(ITEMS) % 2).astype(np.uint8))


def loader(
    view: CropConfig,
    workers: int = 0,
    channels: int = 3,
    world: World | None = None,
    augment: tuple[Augmentation, ...] = (),
    image_size: Size = IMAGE,
    order: Order = SHUFFLED,
) -> Loader:
    samples = open_arrays("noise", ("even", "odd"), Noise(channels))
    items = tuple(reversed(samples.of("train")))  # so that a place is not a row
    labels = np.array([item.label for item in items])
    plan = SamplingPlan(labels, order, 6, 5, world or World())
    seen = ImagePipeline(image_size, Decoding(channels=channels), view, augment)
    return Loader(items, samples.store, seen, plan, workers, cache_bytes=2**16)


def test_a_crew_that_works_row_by_row_shows_the_same_bits() -> None:
    views: list[tuple[CropConfig, tuple[Augmentation, ...], Size]] = [
        (RandomResizedCrop(), (), IMAGE),
        (RandomResizedCrop(filter="bicubic"), (RandomErasing(probability=0.5), RandAugment()), IMAGE),
        (Resize(), (RandomErasing(probability=0.5),), IMAGE),
        (RandomCrop(padding=3), (RandomErasing(probability=0.5),), WHOLE),
        (RandomCrop(padding=3, padding_mode="reflect", flip=False), (), IMAGE),
    ]
    for view, augment, size in views:
        together, by_rows = (
            loader(view, workers, augment=augment, image_size=size, order=Repeated(repeats=2)) for workers in (0, 1)
        )
        assert together._in_memory is not None
        for one, other in zip(together.batches(2, 11), by_rows.batches(2, 11), strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
            assert torch.equal(one.indices, other.indices)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_stream_from_the_middle_goes_on_as_the_whole_one(channels: int) -> None:
    whole = list(loader(RandomResizedCrop(), channels=channels).batches(0, 12))
    for start in (1, 5, 11):
        rest = loader(RandomResizedCrop(), channels=channels).batches(start, 12)
        assert all(torch.equal(one.images, other.images) for one, other in zip(whole[start:], rest, strict=True))


def test_two_streams_of_one_loader_do_not_disturb_each_other() -> None:
    shared = loader(RandomResizedCrop())
    expected = [batch.images for batch in loader(RandomResizedCrop()).batches(0, 8)]
    first, second = shared.batches(0, 8), shared.batches(0, 8)
    for images in expected:
        assert torch.equal(next(first).images, images)
        assert torch.equal(next(second).images, images)


def test_two_processes_show_the_halves_of_what_one_shows() -> None:
    whole = [batch.images for batch in loader(RandomResizedCrop()).batches(0, 6)]
    for rank in (0, 1):
        half = loader(RandomResizedCrop(), world=World(rank=rank, size=2)).batches(0, 6)
        assert all(torch.equal(one[rank::2], other.images) for one, other in zip(whole, half, strict=True))


def test_repetitions_of_an_image_are_different_views_of_it_and_shared_out_among_processes() -> None:
    order, crop = Repeated(repeats=3), RandomResizedCrop()
    for batch in loader(crop, order=order).batches(0, 3):
        assert batch.indices.tolist()[::3] == batch.indices.tolist()[1::3] == batch.indices.tolist()[2::3]
        assert len({image.numpy().tobytes() for image in batch.images}) == 6
    whole = [batch.images for batch in loader(crop, order=order).batches(0, 3)]
    for rank in (0, 1):
        half = loader(crop, order=order, world=World(rank=rank, size=2)).batches(0, 3)
        assert all(torch.equal(one[rank::2], other.images) for one, other in zip(whole, half, strict=True))


def test_what_an_album_does_not_know_is_left_to_rows() -> None:
    assert loader(CenterCrop())._in_memory is None
    store = ArrayStore("noise", Noise(1))
    items = [Item("train/0001.npy", 0, "train"), Item("test/0001.npy", 0, "train")]
    plan = SamplingPlan(np.zeros(2, dtype=np.int64), Sequential(), 2, 0)
    for channels, some in ((1, items), (3, items[:1] * 2)):  # of two parts; gray to be shown in color
        mixed = Loader(
            some, store, ImagePipeline(IMAGE, Decoding(channels=channels), RandomResizedCrop()), plan, cache_bytes=2**16
        )
        assert mixed._in_memory is None
        assert next(mixed.batches(0, 1)).images.shape == (2, channels, *IMAGE)
