"""The shelf: what comes off it is what the file gives, and a file is opened no more than needed."""

import numpy as np
import pytest

from tests.data.pictures import encoded, smooth
from vitral.core.config import Size
from vitral.data.decoding.decode import Encoded, decode, opened
from vitral.data.decoding.header import Decoding
from vitral.data.loading.cache import Kept, Shelf, shelf
from vitral.data.loading.shared_memory import FORK

DATA = {"JPEG": encoded(smooth(80, 64), "JPEG"), "PNG": encoded(smooth(80, 64), "PNG")}
NEEDS = [Size(80, 64), Size(41, 20), Size(40, 32), Size(10, 8), Size(200, 200)]


class Reader:
    """Opens one file and counts how often."""

    def __init__(self, data: bytes) -> None:
        self.data, self.times = data, 0

    def __call__(self) -> Encoded:
        self.times += 1
        return opened(self.data, "shot", Decoding())


def test_the_pixels_are_those_of_the_file_at_every_scale_in_any_order() -> None:
    for kind, data in DATA.items():
        read, place = Reader(data), shelf(3, 3, 10**6, FORK)
        for need in (*NEEDS, *reversed(NEEDS)):
            picture = Kept(place, 1, read)
            assert picture.size == Size(80, 64)
            np.testing.assert_array_equal(picture.pixels(need), decode(data, "shot", Decoding(), need))
        assert read.times == (3 if kind == "JPEG" else 1)  # of a JPEG at 1, 1/2 and 1/8


def test_pictures_do_not_get_mixed_up() -> None:
    place = shelf(2, 3, 10**6, FORK)
    other = encoded(smooth(30, 30), "PNG")
    for _ in range(2):
        for number, data in enumerate((DATA["PNG"], other)):
            found = Kept(place, number, Reader(data)).pixels(Size(8, 8))
            np.testing.assert_array_equal(found, decode(data, "", Decoding(), Size(8, 8)))


@pytest.mark.parametrize("room", [0, 80 * 64 * 3 - 1])
def test_what_has_no_room_is_read_each_time(room: int) -> None:
    read, place = Reader(DATA["PNG"]), shelf(1, 3, room, FORK)
    for times in (1, 2, 3):
        assert Kept(place, 0, read).pixels(Size(8, 8)).shape == (80, 64, 3)
        assert read.times == times
    assert place.used.array[0] == 0


def keep(place: Shelf) -> None:
    Kept(place, 0, Reader(DATA["PNG"])).pixels(Size(8, 8))


def test_what_one_process_kept_another_finds() -> None:
    place, read = shelf(1, 3, 10**6, FORK), Reader(DATA["PNG"])
    worker = FORK.Process(target=keep, args=(place,))
    worker.start()
    worker.join()
    np.testing.assert_array_equal(Kept(place, 0, read).pixels(Size(8, 8)), smooth(80, 64))
    assert read.times == 0
