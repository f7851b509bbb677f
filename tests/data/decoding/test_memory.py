"""All decoders of a command share one budget of memory."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded
from vitral.core.config import Size
from vitral.data.decoding import memory
from vitral.data.decoding.decode import EncodedImage, open_image
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.memory import MemoryBudget, process_budget, renew_budget, set_budget, share_budget
from vitral.data.loading.shared_memory import FORK, SPAWN, Context

SIDE = 64
DATA = encoded(Image.new("RGB", (SIDE, SIDE)), "PNG")
BYTES = SIDE * SIDE * 8  # that Pillow takes to decode it


@pytest.fixture(autouse=True)
def budget() -> Iterator[None]:
    yield
    set_budget(memory.thread_budget(memory.DECODE_BYTES))


class Gauge:
    """Counts how many images are decoded at once, each of which waits until there are as many as are expected."""

    def __init__(self, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        changed, decode = threading.Condition(), EncodedImage._decode

        def counted(image: EncodedImage, min_size: Size) -> object:
            with changed:
                self.now += 1
                self.most = max(self.most, self.now)
                changed.notify_all()
                changed.wait_for(lambda: self.most >= expected, timeout=60)
            time.sleep(0.02)  # in which one more than expected could begin
            with changed:
                self.now -= 1
            return decode(image, min_size)

        monkeypatch.setattr(EncodedImage, "_decode", counted)


def decode_all(count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: open_image(DATA, "it", Decoding()).pixels(Size(8, 8)), range(count)))


@pytest.mark.parametrize(("total", "most"), [(BYTES // 3, 1), (BYTES, 1), (2 * BYTES, 2), (64 * BYTES, 6)])
def test_threads_decode_together_what_fits_into_the_budget(
    total: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_budget(memory.thread_budget(total))
    gauge = Gauge(most, monkeypatch)
    decode_all(6)
    assert gauge.most == most


def test_an_error_gives_back_what_was_reserved() -> None:
    set_budget(memory.thread_budget(BYTES))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), process_budget().reserve(BYTES):
            raise ZeroDivisionError


def test_units_of_a_decoder_that_was_killed_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PATIENCE", 0.05)
    set_budget(memory.thread_budget(BYTES))
    budget = process_budget()
    for _ in range(40):  # units that are never given back
        assert budget.units.acquire(True, 0)
    decode_all(2)
    assert budget.turn.acquire(True, 0)  # nor is the turn
    decode_all(2)
    assert [budget.units.acquire(True, 0) for _ in range(25)] == [True] * 24 + [False]


def test_who_waits_for_much_is_served_before_who_comes_later() -> None:
    set_budget(memory.thread_budget(640))
    order: list[str] = []

    def take(name: str, size: int) -> None:
        with process_budget().reserve(size):
            order.append(name)

    threads = [threading.Thread(target=take, args=each) for each in (("giant", 6_400), ("later", 320))]
    with process_budget().reserve(320):
        for thread in threads:
            thread.start()
            time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert order == ["giant", "later"]


def hold(budget: MemoryBudget, log: str) -> None:
    set_budget(budget)
    with process_budget().reserve(1_000):
        with Path(log).open("a") as file:
            file.write("in ")
        time.sleep(0.1)
        with Path(log).open("a") as file:
            file.write("out ")


@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
def test_processes_share_the_budget_of_their_parent(context: Context, tmp_path: Path) -> None:
    set_budget(memory.thread_budget(640))
    arguments = (share_budget(context), str(tmp_path / "log"))
    workers = [context.Process(target=hold, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "log").read_text().split() == ["in", "out", "in", "out"]


def test_workers_of_one_command_get_one_budget() -> None:
    first = share_budget(FORK)
    assert share_budget(FORK) is first is process_budget()
    renew_budget()  # the workers have ended
    assert process_budget() is not first
    assert process_budget().total == first.total


def test_an_array_of_floats_is_converted_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((40, 30, 3)).astype(np.float16)
    data = encoded_array(values)
    whole = open_image(data, "it", Decoding()).pixels(Size(8, 8))
    np.testing.assert_array_equal(whole, np.rint(values.astype(np.float64) * 255))
    monkeypatch.setattr("vitral.data.decoding.pixels.BAND_PIXELS", 70)
    np.testing.assert_array_equal(open_image(data, "it", Decoding()).pixels(Size(8, 8)), whole)


def encoded_array(values: np.ndarray) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    np.save(stream, values)
    return stream.getvalue()
