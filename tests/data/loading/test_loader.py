"""The stream of batches: byte for byte the same for any workers, processes and start, on every kind of source."""

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.loading.photos import photo, photos
from tests.data.pictures import encoded
from tests.data.tars import write_tar
from tests.errors import raises
from tests.processes import run_forked
from vitral.core.config import Size
from vitral.core.errors import VitralError
from vitral.data.datasets.pack import pack
from vitral.data.datasets.source import open_data
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.loader import Batch, ImagePipeline, Loader
from vitral.data.loading.sampler import (
    SINGLE_PROCESS,
    Balanced,
    Order,
    SamplerState,
    SamplingPlan,
    Sequential,
    Shuffled,
    World,
)
from vitral.data.loading.shared_memory import FORK, SPAWN
from vitral.data.samples import Samples
from vitral.data.transforms.crop import CenterCrop, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import Preprocessing

IMAGE = Size(24, 20)
TRAINING = ImagePipeline(IMAGE, Decoding(), RandomResizedCrop())


class Speckle:
    """An augmentation that shows whether the generator is the sample's own."""

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        return pixels ^ rng.integers(0, 4, pixels.shape, dtype=np.uint8)


PIPELINES = {
    "training": replace(TRAINING, augment=(Speckle(),)),
    "gray": ImagePipeline(IMAGE, Decoding(channels=1), CenterCrop(), (Speckle(),)),
    "evaluation": ImagePipeline(IMAGE, Decoding(), Resize()),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return photos(tmp_path_factory.mktemp("photos"))


def loader(
    samples: Samples,
    pipeline: ImagePipeline,
    order: Order,
    workers: int = 0,
    world: World = SINGLE_PROCESS,
    cache_bytes: int = 2**20,
) -> Loader:
    items = samples.of("train")
    plan = SamplingPlan(np.array([item.label for item in items]), order, 4, 3, world)
    return Loader(items, samples.store, pipeline, plan, workers, cache_bytes)


def content(batch: Batch) -> tuple[object, ...]:
    return (batch.images.numpy().tobytes(), *batch.labels.tolist(), *batch.indices.tolist())


def woven(parts: tuple[Batch, ...]) -> Batch:
    """The batch of which each process holds every n-th image."""

    def weave(tensors: list[torch.Tensor]) -> torch.Tensor:
        whole = tensors[0].new_zeros((sum(map(len, tensors)), *tensors[0].shape[1:]))
        for rank, part in enumerate(tensors):
            whole[rank :: len(tensors)] = part
        return whole

    images = weave([part.images for part in parts])
    labels, places = weave([part.labels for part in parts]), weave([part.indices for part in parts])
    # The loader's images are channels last in memory; so must these be to have the same bytes.
    return Batch(images.contiguous(), labels, places)


@pytest.mark.parametrize("order", [Shuffled(), Balanced(), Sequential()])
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.sampled(9)
def test_the_stream_is_the_same_for_any_workers_processes_and_start(
    samples: Samples, pipeline: str, order: Order
) -> None:
    steps = 2 * loader(samples, PIPELINES[pipeline], order).plan.steps_per_epoch + 1
    truth = [content(batch) for batch in loader(samples, PIPELINES[pipeline], order).batches(0, steps)]
    assert len(set(truth)) == (steps if pipeline != "evaluation" or order == Shuffled() else len(set(truth)))
    for workers in (0, 1, 2):
        alone = loader(samples, PIPELINES[pipeline], order, workers)
        assert [content(batch) for batch in alone.batches(0, steps)] == truth
        pair = [loader(samples, PIPELINES[pipeline], order, workers, World(rank=rank, size=2)) for rank in range(2)]
        streams = zip(*(half.batches(0, steps) for half in pair), strict=True)
        assert [content(woven(parts)) for parts in streams] == truth
        for start in range(steps) if not workers else (1, steps - 1):
            assert [content(batch) for batch in alone.batches(start, steps)] == truth[start:]


@pytest.mark.slow
def test_packed_into_shards_a_set_gives_the_same_stream(samples: Samples, tmp_path: Path) -> None:
    pack(samples, tmp_path / "packed", shard_size=20_000)
    pipeline = PIPELINES["training"]
    truth = [content(batch) for batch in loader(samples, pipeline, Shuffled()).batches(0, 5)]
    for where in (str(tmp_path / "packed"), f"file://{tmp_path}/packed"):
        packed = open_data(where)
        assert len(list((tmp_path / "packed").glob("train-*.tar"))) > 1
        for workers in (0, 2):
            alone = loader(packed, pipeline, Shuffled(), workers)
            assert [content(batch) for batch in alone.batches(0, 5)] == truth
            pair = [loader(packed, pipeline, Shuffled(), workers, World(rank=rank, size=2)) for rank in range(2)]
            for start in (0, 3):
                assert [content(batch) for batch in alone.batches(start, 5)] == truth[start:]
                streams = zip(*(half.batches(start, 5) for half in pair), strict=True)
                assert [content(woven(parts)) for parts in streams] == truth[start:]


def test_shards_of_others_give_the_same_stream_from_any_step(tmp_path: Path) -> None:
    for shard in range(3):
        keys = [f"{shard}{number}" for number in range(5)]
        files = [(f"{key}.jpg", encoded(photo(int(key)), "JPEG"), f"{key}.cls", key[-1] == "0") for key in keys]
        members = [pair for name, data, label, first in files for pair in ((name, data), (label, b"01"[first:][:1]))]
        write_tar(tmp_path / f"train-{shard}.tar", members)
    others = open_data(str(tmp_path / "train-{0..2}.tar"))
    truth = [content(batch) for batch in loader(others, TRAINING, Shuffled()).batches(0, 5)]
    for workers in (0, 2):
        for start in range(5):
            stream = loader(others, TRAINING, Shuffled(), workers).batches(start, 5)
            assert [content(batch) for batch in stream] == truth[start:]


def test_an_evaluation_shows_the_pixels_of_prediction(samples: Samples) -> None:
    seen = Preprocessing(image_size=IMAGE)
    for batch in loader(samples, PIPELINES["evaluation"], Sequential()).epoch():
        for image, place in zip(batch.images, batch.indices.tolist(), strict=True):
            item = samples.of("train")[place]
            expected = seen.pixels(samples.read(item), item.name)
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_an_epoch_shows_every_image_once_with_its_label(samples: Samples) -> None:
    batches = list(loader(samples, PIPELINES["evaluation"], Sequential(), workers=2).epoch())
    assert [len(batch.images) for batch in batches] == [4, 4, 3]
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(11))
    assert torch.cat([batch.labels for batch in batches]).tolist() == [item.label for item in samples.of("train")]


def test_a_stream_goes_on_from_its_json_with_other_workers_and_processes(samples: Samples) -> None:
    truth = [content(batch) for batch in loader(samples, TRAINING, Shuffled()).batches(0, 5)]
    saved = loader(samples, TRAINING, Shuffled()).plan.state(3).to_json()
    pair = [loader(samples, TRAINING, Shuffled(), 1, World(rank=rank, size=2)) for rank in range(2)]
    streams = zip(
        *(half.batches(half.plan.resume_step(SamplerState.from_json(saved)), 5) for half in pair), strict=True
    )
    assert [content(woven(parts)) for parts in streams] == truth[3:]


@pytest.mark.parametrize("cache_bytes", [0, 30_000, 10**7])
def test_what_is_kept_in_memory_changes_no_byte(samples: Samples, cache_bytes: int) -> None:
    truth = [content(batch) for batch in loader(samples, TRAINING, Shuffled(), cache_bytes=0).batches(0, 8)]
    keeping = loader(samples, TRAINING, Shuffled(), workers=2, cache_bytes=cache_bytes)
    assert [content(batch) for batch in keeping.batches(0, 8)] == truth
    assert [content(batch) for batch in keeping.batches(0, 8)] == truth
    assert bool(keeping.cache.memory.used.array[0]) is bool(cache_bytes)


def test_once_all_is_kept_no_file_is_read(tmp_path: Path) -> None:
    few = photos(tmp_path)
    keeping = Loader.of(few, "train", PIPELINES["evaluation"], Sequential(), batch=4, workers=2)
    first = [content(batch) for batch in keeping.epoch()]
    for item in few.items:
        (tmp_path / item.name).unlink()
    assert [content(batch) for batch in keeping.epoch(1)] == first


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_stay_as_they_are_while_others_follow(samples: Samples, workers: int) -> None:
    truth = [content(batch) for batch in loader(samples, TRAINING, Shuffled()).batches(0, 10)]
    held = list(loader(samples, TRAINING, Shuffled(), workers).batches(0, 10))
    assert [content(batch) for batch in held] == truth


def test_what_is_drawn_for_an_image_depends_on_no_batch(samples: Samples) -> None:
    shown: list[dict[int, bytes]] = []
    for size in (1, 4):
        batches = Loader.of(samples, "train", PIPELINES["training"], Shuffled(), size, seed=3).epoch(2)
        images = [(place, view) for batch in batches for place, view in zip(batch.indices, batch.images, strict=True)]
        shown.append({int(place): view.numpy().tobytes() for place, view in images})
    assert shown[1].items() < shown[0].items()


@pytest.mark.parametrize("workers", [0, 2])
def test_two_streams_of_one_loader_do_not_disturb_each_other(samples: Samples, workers: int) -> None:
    truth = [content(batch) for batch in loader(samples, TRAINING, Shuffled()).batches(0, 20)]
    both = loader(samples, TRAINING, Shuffled(), workers)
    pairs = zip(both.batches(0, 10), both.batches(10, 20), strict=True)
    assert [(content(one), content(other)) for one, other in pairs] == list(zip(truth[:10], truth[10:], strict=True))


UNFINISHED = """
import signal, sys
from pathlib import Path
from tests.data.loading.test_loader import TRAINING, Shuffled, loader, photos
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which is not for the workers
stream = loader(photos(Path(sys.argv[1])), TRAINING, Shuffled(), workers=2).batches(0, 10**6)
next(stream)
"""


def test_a_program_may_end_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    run = run_forked(str(tmp_path), code=UNFINISHED, cwd=Path(__file__).parents[3])
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.slow
def test_spawned_workers_give_the_same(samples: Samples) -> None:
    plan = loader(samples, TRAINING, Shuffled()).plan
    streams = [
        [
            content(batch)
            for batch in Loader(samples.of("train"), samples.store, TRAINING, plan, 1, 10**6, context).epoch()
        ]
        for context in (FORK, SPAWN)
    ]
    assert streams[0] == streams[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_named_after_the_batches_before_it(tmp_path: Path, workers: int) -> None:
    bad = photos(tmp_path)
    item = bad.of("train")[6]
    (tmp_path / item.name).write_bytes((tmp_path / item.name).read_bytes()[:-40])
    stream = Loader.of(bad, "train", PIPELINES["evaluation"], Sequential(), batch=4, workers=workers).epoch()
    assert next(stream).indices.tolist() == [0, 1, 2, 3]
    with raises("data.truncated_image") as caught:
        list(stream)
    assert caught.value.where == str(tmp_path / item.name)


def test_after_a_dead_worker_the_loader_can_be_used_again(samples: Samples) -> None:
    source = loader(samples, TRAINING, Shuffled(), workers=2)
    truth = [content(batch) for batch in loader(samples, TRAINING, Shuffled()).batches(0, 2)]
    stream = source.batches(0, 10**6)
    next(stream)
    worker = multiprocessing.active_children()[0]
    os.kill(worker.pid or 0, signal.SIGKILL)
    with pytest.raises(VitralError) as caught:
        for _ in stream:
            pass
    assert caught.value.code in {"run.lost_process", "data.lost_process"}  # by what the worker was at
    assert "SIGKILL" in caught.value.message
    assert [content(batch) for batch in source.batches(0, 2)] == truth


def test_a_split_without_images_names_those_that_have_some(samples: Samples) -> None:
    with raises("config.empty_split", "split", "test", "train", "val"):
        Loader.of(samples, "test", TRAINING, Sequential(), batch=4)


def test_fewer_workers_than_none_are_refused(samples: Samples) -> None:
    with raises("config.out_of_range", "workers", -1):
        Loader.of(samples, "train", TRAINING, Sequential(), batch=4, workers=-1)
