"""The decoded cache: cached pixels are those of the file, and a file is opened no more than needed."""

from typing import get_args

import numpy as np
import pytest

from tests.data.pictures import encoded, smooth
from vitral.core.config import Size
from vitral.data.decoding.decode import EncodedImage, decode, open_image
from vitral.data.decoding.header import Decoding, JpegScale
from vitral.data.loading.shared_memory import FORK, CachedImage, DecodedCache, discard_memory, process_memory

DATA = {"JPEG": encoded(smooth(80, 64), "JPEG"), "PNG": encoded(smooth(80, 64), "PNG")}
NEEDS = [Size(80, 64), Size(41, 20), Size(40, 32), Size(10, 8), Size(200, 200)]


def cache_of(images: int, cache_bytes: int, decoding: Decoding = Decoding()) -> DecodedCache:  # noqa: B008, immutable
    """A cache with memory of its own."""
    discard_memory(cache_bytes, FORK)
    return DecodedCache(images, decoding, process_memory(cache_bytes, FORK), FORK)


class Reader:
    """Opens one file and counts how often."""

    def __init__(self, data: bytes, decoding: Decoding = Decoding()) -> None:  # noqa: B008, immutable
        self.data, self.decoding, self.times = data, decoding, 0

    def __call__(self) -> EncodedImage:
        self.times += 1
        return open_image(self.data, "shot", self.decoding)


def test_the_pixels_are_those_of_the_file_at_every_scale_in_any_order() -> None:
    for kind, data in DATA.items():
        read, cache = Reader(data), cache_of(3, 10**6)
        for need in (*NEEDS, *reversed(NEEDS)):
            image = CachedImage(cache, 1, read)
            assert image.size == Size(80, 64)
            np.testing.assert_array_equal(image.pixels(need), decode(data, "shot", Decoding(), need))
        assert read.times == (3 if kind == "JPEG" else 1)  # of a JPEG at 1, 1/2 and 1/8


@pytest.mark.parametrize("choice", get_args(JpegScale))
def test_cached_pixels_are_those_of_the_scale_that_the_decoding_chooses(choice: JpegScale) -> None:
    decoding = Decoding(jpeg_scale=choice)
    read, cache = Reader(DATA["JPEG"], decoding), cache_of(1, 10**6, decoding)
    for need in (*NEEDS, *NEEDS):
        expected = decode(DATA["JPEG"], "shot", decoding, need)
        np.testing.assert_array_equal(CachedImage(cache, 0, read).pixels(need), expected)


def test_images_do_not_get_mixed_up() -> None:
    cache = cache_of(2, 10**6)
    other = encoded(smooth(30, 30), "PNG")
    for _ in range(2):
        for number, data in enumerate((DATA["PNG"], other)):
            found = CachedImage(cache, number, Reader(data)).pixels(Size(8, 8))
            np.testing.assert_array_equal(found, decode(data, "", Decoding(), Size(8, 8)))


@pytest.mark.parametrize("cache_bytes", [0, 80 * 64 * 3 - 1])
def test_what_has_no_room_is_read_each_time(cache_bytes: int) -> None:
    read, cache = Reader(DATA["PNG"]), cache_of(1, cache_bytes)
    for times in (1, 2, 3):
        assert CachedImage(cache, 0, read).pixels(Size(8, 8)).shape == (80, 64, 3)
        assert read.times == times
    assert cache.memory.used.array[0] == 0


def keep(cache: DecodedCache) -> None:
    CachedImage(cache, 0, Reader(DATA["PNG"])).pixels(Size(8, 8))


def test_what_one_process_kept_another_finds() -> None:
    cache, read = cache_of(1, 10**6), Reader(DATA["PNG"])
    worker = FORK.Process(target=keep, args=(cache,))
    worker.start()
    worker.join()
    np.testing.assert_array_equal(CachedImage(cache, 0, read).pixels(Size(8, 8)), smooth(80, 64))
    assert read.times == 0


def test_all_caches_of_a_process_share_one_memory() -> None:
    first = cache_of(1, 2 * 80 * 64 * 3 + 1)
    others = [DecodedCache(1, Decoding(), process_memory(2 * 80 * 64 * 3 + 1, FORK), FORK) for _ in range(2)]
    reads = [Reader(DATA["PNG"]) for _ in range(3)]
    for _ in range(2):
        for cache, read in zip((first, *others), reads, strict=True):
            np.testing.assert_array_equal(CachedImage(cache, 0, read).pixels(Size(8, 8)), smooth(80, 64))
    assert [read.times for read in reads] == [1, 1, 2]  # there is room for two


def test_memory_is_replaced_after_a_worker_was_killed_and_freed_with_the_last_cache() -> None:
    cache = cache_of(1, 12_345)
    assert process_memory(12_345, FORK) is cache.memory
    discard_memory(12_345, FORK)
    assert process_memory(12_345, FORK) is not cache.memory
