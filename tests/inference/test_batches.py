"""Batches of pixels, the very pixels that evaluation sees."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.data.decoding.hostile import breakable, breaking
from tests.errors import raises
from tests.inference.album import BAD, listed, photos, spoilt
from vitral.core.config import Size
from vitral.data.datasets.files import FileStore
from vitral.data.datasets.named import open_sample
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.isolation import Isolation
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Sequential
from vitral.data.samples import Item, Samples
from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.batches import MAX_FAILED, NICENESS, PREFETCH_BATCHES, THREADS, read_batches
from vitral.inference.inputs import DatasetImage, ImageRef

NEEDS = Preprocessing(image_size=Size(16, 24))


@pytest.mark.parametrize("view", [Resize(), CenterCrop(), CenterCrop(filter="bicubic", fraction=1.0)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_bit_for_bit_those_of_evaluation(tmp_path: Path, view: Resize, channels: int) -> None:
    paths = photos(tmp_path, 7, side=60)
    needs = Preprocessing(image_size=Size(16, 24), decoding=Decoding(channels=channels), crop=view)
    items = tuple(Item(path.name, 0, "test") for path in paths)
    samples = Samples(str(tmp_path), ("a",), items, FileStore(str(tmp_path)))
    loader = Loader.of(
        samples, "test", ImagePipeline(needs.image_size, needs.decoding, needs.crop), Sequential(), batch=3
    )
    seen = np.concatenate([batch.images.permute(0, 2, 3, 1).numpy() for batch in loader.epoch()])
    found = np.concatenate([batch.pixels for batch in read_batches(listed(paths), needs, 3)])
    assert (found == seen).all()


def test_pixels_of_a_set_in_memory_are_those_of_evaluation() -> None:
    samples = open_sample()
    needs = Preprocessing(image_size=Size(20, 20), decoding=Decoding(channels=1))
    loader = Loader.of(
        samples, "test", ImagePipeline(needs.image_size, needs.decoding, needs.crop), Sequential(), batch=500
    )
    seen = np.concatenate([batch.images.permute(0, 2, 3, 1).numpy() for batch in loader.epoch()])
    images = [ImageRef(item.name, DatasetImage(samples.store, item.name)) for item in samples.of("test")]
    assert (np.concatenate([batch.pixels for batch in read_batches(images, needs, 64)]) == seen).all()


def test_a_file_that_kills_its_decoder_is_an_error_among_the_others(tmp_path: Path) -> None:
    images = listed(photos(tmp_path / "photos", 5))
    (tmp_path / "crash.gif").write_bytes(breaking("crash"))
    mixed = [*images[:2], *listed([tmp_path / "crash.gif"]), *images[2:]]
    (tmp_path / "site").mkdir()
    with breakable(tmp_path / "site"), Isolation().build() as decode:
        found = list(read_batches(mixed, NEEDS, 3, decode))
    assert [batch.names[place] for batch in found for place in batch.failed] == [str(tmp_path / "crash.gif")]
    assert [error.code for batch in found for error in batch.failed.values()] == ["data.decoder_killed"]
    seen = np.concatenate([batch.pixels for batch in found])
    np.testing.assert_array_equal(seen, np.concatenate([each.pixels for each in read_batches(images, NEEDS, 3)]))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 8, 23])
def test_batches_are_full_but_for_the_last_and_keep_the_order(tmp_path: Path, count: int) -> None:
    found = list(read_batches(listed(photos(tmp_path, count)), NEEDS, 4))
    assert [len(batch.pixels) for batch in found] == [4] * (count // 4) + [count % 4] * (count % 4 > 0)
    assert [name for batch in found for name in batch.names] == [f"{tmp_path}/{number}.jpg" for number in range(count)]
    for batch in found:
        for name, pixels in zip(batch.readable, batch.pixels, strict=True):
            assert (pixels == NEEDS.pixels(Path(name).read_bytes(), name)).all()


def test_bad_files_keep_their_place_and_cost_the_batch_nothing(tmp_path: Path) -> None:
    good = listed(photos(tmp_path, 6))
    bad = listed(spoilt(tmp_path))
    mixed = [good[0], bad[0], *good[1:4], bad[1], *good[4:], *bad[2:]]
    found = list(read_batches(mixed, NEEDS, 3))
    assert [len(batch.pixels) for batch in found] == [3, 3, 0]
    assert [name for batch in found for name in batch.names] == [image.name for image in mixed]
    failed = {batch.names[place]: error.code for batch in found for place, error in batch.failed.items()}
    codes = ("data.truncated_image", "data.unknown_format", "data.not_found", "data.unknown_format")
    assert failed == {f"{tmp_path}/{name}": code for name, code in zip(BAD, codes, strict=True)}
    assert [Path(name).name for batch in found for name in batch.readable] == [f"{number}.jpg" for number in range(6)]


def test_bad_files_without_end_do_not_pile_up(tmp_path: Path) -> None:
    (bad,) = listed(spoilt(tmp_path)[3:])
    found = list(read_batches([bad] * 30, NEEDS, 2))
    assert [len(batch.names) for batch in found] == [2 * MAX_FAILED] * 3 + [30 - 6 * MAX_FAILED]


@dataclass(frozen=True)
class Watched:
    """A place that counts who reads it and who has."""

    data: bytes
    counts: list[int]
    lock: threading.Lock

    def read(self) -> bytes:
        with self.lock:
            self.counts[0] += 1
            self.counts[1] = max(self.counts[1], threading.active_count())
        return self.data


def test_reading_runs_ahead_so_far_and_no_further_and_stops_when_asked(tmp_path: Path) -> None:
    data, counts = photos(tmp_path, 1)[0].read_bytes(), [0, 0]
    place = Watched(data, counts, threading.Lock())
    before, listed_so_far = threading.active_count(), 0

    def many() -> Iterator[ImageRef]:
        nonlocal listed_so_far
        for _ in range(1000):
            listed_so_far += 1
            yield ImageRef("same.jpg", place)

    found = read_batches(many(), NEEDS, 8)
    for _ in range(3):
        next(found)
    deadline = time.monotonic() + 30
    while counts[0] < listed_so_far and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts[0] == listed_so_far <= 3 * 8 + PREFETCH_BATCHES * 8
    assert counts[0] > 3 * 8  # it did run ahead
    assert counts[1] <= before + THREADS
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_a_batch_is_not_written_to_once_it_is_handed_on(tmp_path: Path) -> None:
    found = read_batches(listed(photos(tmp_path, 6)), NEEDS, 2)
    first = next(found)
    kept = first.pixels.copy()
    list(found)
    assert (first.pixels == kept).all()


def test_a_fault_of_ours_names_the_image(tmp_path: Path) -> None:
    class Strange:
        def read(self) -> bytes:
            raise ZeroDivisionError("never seen before")

    with raises("internal.unexpected", "ZeroDivisionError: never seen before") as caught:
        list(read_batches([*listed(photos(tmp_path, 3)), ImageRef("odd.jpg", Strange())], NEEDS, 2))
    assert caught.value.where == "odd.jpg"


@dataclass(frozen=True)
class Weighed:
    """A place that notes how far its readers stand back."""

    data: bytes
    priorities: set[int]

    def read(self) -> bytes:
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return self.data


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
@pytest.mark.parametrize(("own", "expected"), [(None, NICENESS), (19, 19)])
def test_readers_stand_back_and_never_ahead_of_who_started_them(tmp_path: Path, own: int | None, expected: int) -> None:
    place = Weighed(photos(tmp_path, 1)[0].read_bytes(), set())
    counts: list[int] = []

    def work() -> None:
        if own is not None:  # what `nice -n 19` does, for this thread and those that it starts
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own)
        counts.extend(len(batch.pixels) for batch in read_batches([ImageRef("a.jpg", place)] * 8, NEEDS, 8))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert counts == [8]
    assert place.priorities == {max(expected, os.getpriority(os.PRIO_PROCESS, 0))}


def test_readers_that_may_not_stand_back_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refusing)
    assert [len(batch.pixels) for batch in read_batches(listed(photos(tmp_path, 3)), NEEDS, 3)] == [3]


MIDWAY = """
import sys
from pathlib import Path
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference import batches as reading
from vitral.inference.engines.engine import thread_count
from vitral.inference.inputs import FileSource, ImageRef
reading.TORCH_AFTER = 10
images = (ImageRef(path, FileSource(path)) for path in sys.argv[1:] * 50)
before = "torch" in sys.modules
for batch in reading.read_batches(images, Preprocessing(image_size=Size(16, 24)), 4):
    assert thread_count("torch") >= 1  # whether or not it is there
    sys.stdout.buffer.write(batch.pixels.tobytes())
assert (before, "torch" in sys.modules) == (False, True)
"""


@pytest.mark.slow
def test_torch_comes_midway_where_many_are_read_and_no_byte_differs(tmp_path: Path) -> None:
    paths = photos(tmp_path, 7, side=60)
    words = [sys.executable, "-c", MIDWAY, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, check=True, timeout=120)
    expected = b"".join(NEEDS.pixels(path.read_bytes(), path.name).tobytes() for path in paths)
    assert done.stdout == expected * 50
