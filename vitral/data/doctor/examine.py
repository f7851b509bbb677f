"""One file examined: what it declares, whether it decodes, and a sketch of it to compare with others."""

import hashlib
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitral.config import Size
from vitral.data.decoder.arrays import layout
from vitral.data.decoder.decode import opened
from vitral.data.decoder.depth import Pixels
from vitral.data.decoder.header import Decoding, Header
from vitral.data.decoder.kind import recognise
from vitral.data.samples import Item, Store
from vitral.errors import DataError

SKETCH = 16  # rows and columns of a sketch
# A JPEG is decoded four times as fine as its sketch: any coarser, and a copy saved as PNG gives another sketch.
NEED = Size(4 * SKETCH, 4 * SKETCH)


class Sound(NamedTuple):
    """A file that decodes."""

    header: Header
    digest: bytes  # of the whole file
    spread: int  # from the darkest to the brightest pixel, in the channel where that is most
    sketch: bytes  # the picture as 16 x 16 x 3


class Broken(NamedTuple):
    """A file that does not, in the words of the error."""

    what: str
    remedy: str


Exam = Sound | Broken


class Examined(NamedTuple):
    """An item and what was found."""

    item: Item
    exam: Exam


def examine(store: Store, item: Item) -> Exam:
    """What there is to know of one image; a file that cannot be read or decoded is an answer too."""
    try:
        return _sound(store.read(item.name), item.name)
    except DataError as error:
        return Broken(error.what, error.remedy)


def decoding_of(data: bytes, name: str) -> Decoding:
    """How to decode a file by itself: an array has the channels that it has."""
    return Decoding(channels=layout(data, name).channels) if recognise(data, name) == "NPY" else Decoding()


def viewable(pixels: Pixels) -> Image.Image:
    """The pixels, of any number of channels, as a picture in colour; what is neither grey nor RGB becomes its mean."""
    channels = pixels.shape[2]
    if channels == 3:
        return Image.fromarray(pixels)
    grey = pixels[..., 0] if channels == 1 else pixels.mean(axis=2).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def _sound(data: bytes, name: str) -> Sound:
    encoded = opened(data, name, decoding_of(data, name))
    picture = viewable(encoded.pixels(NEED))
    spread = int(np.diff(np.array(picture.getextrema())).max())  # Pillow is faster at this than NumPy by far
    sketch = picture.resize((SKETCH, SKETCH), Image.Resampling.BILINEAR)
    return Sound(encoded.head, hashlib.blake2b(data, digest_size=16).digest(), spread, sketch.tobytes())
