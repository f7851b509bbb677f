"""Real images for an export: some that judge it, and others to calibrate with.

N images, B of them in a portion, H x W pixels, C channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat
from math import ceil
from typing import NamedTuple

import numpy as np

from vitral.config import Size
from vitral.data.decoder.decode import FULL, decode
from vitral.data.decoder.depth import Pixels
from vitral.data.samples import Item, Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import resize, see
from vitral.deploy.engine import Bytes

PORTION = 32  # images at a time
SMALL = 8  # images of a size at first, where several sizes come in: any few of them meet every size


class Album(NamedTuple):
    """Images, none of which serves both ends."""

    where: str  # what they are, in words: `test images of photos/`
    samples: Samples
    judging: tuple[Item, ...]
    labels: tuple[int, ...]  # of those that judge, by the model's classes; none where the data has other classes
    calibrating: tuple[Item, ...]


class Portion(NamedTuple):
    """Images as a file takes them, and as its model sees them."""

    incoming: Bytes  # (B, H, W, C)
    seen: Bytes  # (B, H, W, C) of the model's own size


def spread(items: Sequence[Item], most: int) -> tuple[Item, ...]:
    """At most so many of the items, from all over their order, so that every part of it is met."""
    count = min(most, len(items))
    return tuple(items[place * len(items) // count] for place in range(count))


def seen(samples: Samples, items: Sequence[Item], needs: Preprocessing) -> Bytes:
    """Images as the model sees them, (B, H, W, C)."""
    return np.stack([needs.pixels(samples.read(item), samples.store.address(item.name)) for item in items])


def mixed(pixels: Bytes) -> Bytes:
    """Images (B, H, W, C), each channel that of another."""
    return np.stack([np.roll(pixels[..., channel], channel, axis=0) for channel in range(pixels.shape[-1])], axis=-1)


@dataclass(frozen=True)
class Sitting:
    """The images that judge, a portion at a time; how often it is asked for makes no difference.

    Grey images cannot tell a model that takes red for blue: where they are all grey and the model sees colours, some
    come once more, each channel that of another image.
    """

    album: Album
    needs: Preprocessing
    sizes: tuple[Size, ...]  # that come in, portion by portion in turns; none where a file takes what the model sees

    def __iter__(self) -> Iterator[Portion]:
        for number, items in enumerate(self._shares()):
            size = self.sizes[number % len(self.sizes)] if self.sizes else self.needs.image
            yield self._portion(self._incoming(items, size), size)
        if self.mixes:
            size = self.sizes[0] if self.sizes else self.needs.image
            yield self._portion(mixed(self._incoming(self.album.judging[:PORTION], size)), size)

    @cached_property
    def mixes(self) -> bool:
        """Whether some images come once more, in colours."""
        some = self._incoming(self.album.judging[:PORTION], self.needs.image)
        return some.shape[-1] > 1 and len(some) > 1 and bool((some == some[..., :1]).all())

    def words(self) -> str:
        """How many images there are, and which."""
        more = f", {min(PORTION, len(self.album.judging))} of them once more in mixed colours" if self.mixes else ""
        return f"{len(self.album.judging):,} {self.album.where}{more}"

    def _shares(self) -> Iterator[Sequence[Item]]:
        """The images of each portion; where there are several sizes, the first of each is small."""
        items, count = iter(self.album.judging), len(self.sizes)
        first = min(SMALL, ceil(len(self.album.judging) / count)) if count > 1 else PORTION
        lengths = chain(repeat(first, count), repeat(PORTION))
        while share := tuple(islice(items, next(lengths))):
            yield share

    def _incoming(self, items: Sequence[Item], size: Size) -> Bytes:
        """Images as a file takes them: as the model sees them, or pictures that have come to be of this size."""
        if not self.sizes:
            return seen(self.album.samples, items, self.needs)  # (B, H, W, C)
        return np.stack([resize(self._whole(item), size, self.needs.view.filter) for item in items])

    def _portion(self, incoming: Bytes, size: Size) -> Portion:
        if not self.sizes:
            return Portion(incoming, incoming)
        glimpse = self.needs.view.glimpse(size, self.needs.image)
        return Portion(incoming, np.stack([see(picture, size, glimpse) for picture in incoming]))

    def _whole(self, item: Item) -> Pixels:
        samples = self.album.samples
        return decode(samples.read(item), samples.store.address(item.name), self.needs.decoding, FULL)
