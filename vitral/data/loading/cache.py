"""The shelf: decoded pictures that are kept in memory and shared by all workers, as long as there is room.

A picture is kept at the scale it was decoded at, so that what comes off the shelf is what the file would give.
H rows, W columns, C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Lock

from vitral.core.config import Size
from vitral.data.decoding.decode import Encoded, scale_for
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.shared_memory import Context, Shared, share

SCALES = (1, 2, 4, 8)
HEIGHT, WIDTH, REDUCIBLE, STARTS = 0, 1, 2, 3  # columns of the table; a start for each scale
ROOM = 2**30  # bytes, unless told otherwise


@dataclass(frozen=True)
class Shelf:
    """Room for the pictures of a set. What is in the table, and how much room is left, is read under the lock."""

    room: Shared  # (bytes,)
    used: Shared  # (1,) bytes handed out
    table: (
        Shared  # (images, 7): size at full scale, whether a JPEG, and one more than where the pixels of a scale begin
    )
    channels: int
    lock: Lock


def shelf(images: int, channels: int, room: int, context: Context) -> Shelf:
    """An empty shelf."""
    table = share((images, STARTS + len(SCALES)), "int64", context)
    return Shelf(share((room,), "uint8", context), share((1,), "int64", context), table, channels, context.Lock())


class Kept:
    """A picture of a set whose file is read and decoded only if the shelf does not have it."""

    def __init__(self, shelf: Shelf, place: int, read: Callable[[], Encoded]) -> None:
        self.shelf, self.place, self.read = shelf, place, read
        with shelf.lock:
            height, width, reducible = (int(cell) for cell in shelf.table.array[place, :STARTS])
        self.opened = None if height else read()
        if self.opened is not None:
            height, width = self.opened.size
            reducible = self.opened.head.format == "JPEG"
            with shelf.lock:
                shelf.table.array[place, :STARTS] = height, width, reducible
        self.size, self.reducible = Size(height, width), bool(reducible)

    def pixels(self, need: Size) -> Pixels:
        """The picture, (H, W, C): see `Encoded.pixels`. Not to be written to."""
        scale = scale_for(self.size, need) if self.reducible else 1
        column = STARTS + SCALES.index(scale)
        with self.shelf.lock:
            start = int(self.shelf.table.array[self.place, column]) - 1
        if start >= 0:
            rows, columns = -(-self.size.height // scale), -(-self.size.width // scale)
            flat = self.shelf.room.array[start : start + rows * columns * self.shelf.channels]
            return flat.reshape(rows, columns, self.shelf.channels)
        pixels = (self.opened or self.read()).pixels(need)
        self._keep(pixels, column)
        return pixels

    def _keep(self, pixels: Pixels, column: int) -> None:
        shelf = self.shelf
        with shelf.lock:
            start = int(shelf.used.array[0])
            if start + pixels.size > len(shelf.room.array):
                return
            shelf.used.array[0] = start + pixels.size
        shelf.room.array[start : start + pixels.size] = pixels.reshape(-1)
        with shelf.lock:
            shelf.table.array[self.place, column] = start + 1
