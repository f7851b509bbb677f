"""What engines share."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from vitral.inference.engines.engine import Lazy, evenly_divisible, thread_count


def test_something_is_made_once_whoever_asks() -> None:
    made: list[int] = []
    start = threading.Barrier(8)

    def make() -> object:
        made.append(1)
        time.sleep(0.02)
        return object()

    lazy = Lazy(make)

    def ask(_: int) -> object:
        start.wait()
        return lazy.get()

    assert not made
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert len(found) == len(made) == 1


def test_threads_share_out_as_many_images_to_each() -> None:
    assert [evenly_divisible(images, 3) for images in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert [evenly_divisible(images, 1) for images in range(4)] == [0, 0, 0, 0]  # one thread has nobody to share with


def test_there_are_as_many_threads_as_torch_has_or_as_asked() -> None:
    assert (thread_count("torch"), thread_count(3)) == (torch.get_num_threads(), 3)
