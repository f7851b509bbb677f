"""Arrays of NumPy as images."""

import gc
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.data.pictures import noise, npy
from tests.errors import raises
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import _parser_lock, read_array_header

MANY = noise(12, 10, 5).astype(np.uint8)
UNIT = np.random.default_rng(0).random((12, 10, 5))


@pytest.mark.parametrize("array", [MANY, np.asfortranarray(MANY), MANY[::-1]], ids=["rows", "columns", "view"])
def test_an_array_of_any_channels_is_itself(array: np.ndarray) -> None:
    assert (decode(npy(array), "a.npy", Decoding(channels=5), FULL_SIZE) == array).all()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_floats_from_0_to_1_go_to_the_nearest_level(dtype: str) -> None:
    array = UNIT.astype(dtype)
    pixels = decode(npy(array), "a.npy", Decoding(channels=5), FULL_SIZE)
    assert np.abs(pixels - array.astype(np.float64) * 255).max() <= 0.5


@pytest.mark.parametrize(
    ("array", "code", "found"),
    [
        (UNIT * 2, "data.pixel_out_of_range", "to 1.9"),
        (UNIT - 0.5, "data.pixel_out_of_range", "-0.4"),
        (np.where(UNIT > 0.5, np.nan, UNIT), "data.pixel_out_of_range", "nan to nan"),
        (np.full((12, 10, 5), np.inf), "data.pixel_out_of_range", "inf to inf"),
        (MANY.astype(np.uint16), "data.unsupported_image", "uint16"),
        (MANY.astype(np.int8), "data.unsupported_image", " int8"),
        (MANY > 3, "data.unsupported_image", "bool"),
        (MANY.astype(object), "data.unsupported_image", "object"),
        (MANY.astype(complex), "data.unsupported_image", "complex128"),
        (MANY[0, 0], "data.unsupported_image", "(5,)"),
        (MANY[None], "data.unsupported_image", "(1, 12, 10, 5)"),
        (MANY[:0], "data.unsupported_image", "(0, 10, 5)"),
        (MANY[..., :4], "data.channel_mismatch", 4),
        (MANY[..., 0], "data.channel_mismatch", 1),
    ],
)
def test_any_other_array_is_refused(array: np.ndarray, code: str, found: object) -> None:
    with raises(code, found) as caught:
        decode(npy(array), "a.npy", Decoding(channels=5), FULL_SIZE)
    assert caught.value.where == "a.npy"
    assert caught.value.hint


def test_a_file_longer_or_shorter_than_its_header_says_is_refused() -> None:
    data = npy(MANY)
    assert read_array_header(data, "a.npy").shape == (12, 10, 5)
    for wrong in (data[:-1], data[:130], data.replace(b"(12, ", b"(99, ")):
        with raises("data.truncated_image", "a.npy", len(wrong)):
            read_array_header(wrong, "a.npy")
    with raises("data.corrupt_image", "a.npy", len(data), len(data) + 1):
        read_array_header(data + b"\0", "a.npy")
    for wrong in (
        data[:40],
        data[:8],
        data[:6] + b"\x09\0" + data[8:],
        data.replace(b"'shape'", b"'shake'"),
        data.replace(b"}", b"("),
    ):
        with raises("data.corrupt_image", "a.npy"):
            read_array_header(wrong, "a.npy")


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    with _parser_lock:
        child = multiprocessing.get_context("fork").Process(target=read_array_header, args=(npy(MANY), "a.npy"))
        child.start()
        child.join(20)
        child.kill()  # if it still waits
        child.join()
    assert child.exitcode == 0


class Litter:
    """What the collector has to run code for, which gives another thread its turn in the midst of whatever goes on."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


def test_threads_read_headers_at_once() -> None:
    data, often, interval = npy(MANY), gc.get_threshold(), sys.getswitchinterval()

    def work(_: int) -> tuple[int, ...]:
        Litter()
        return read_array_header(data, "a.npy").shape

    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(work, range(10_000))) == {MANY.shape}
    finally:
        gc.set_threshold(*often)
        sys.setswitchinterval(interval)
