"""One file examined: what it declares, whether it decodes, and a sketch of it to compare with others."""

import hashlib
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitral.config import Size
from vitral.data.decoder.decode import opened
from vitral.data.decoder.header import Header
from vitral.data.samples import Item, Store
from vitral.data.thumbnail import decoding_of, viewable
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

    code: str
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
        return Broken(error.code, error.what, error.remedy)


def _sound(data: bytes, name: str) -> Sound:
    encoded = opened(data, name, decoding_of(data, name))
    picture = viewable(encoded.pixels(NEED))
    spread = int(np.diff(np.array(picture.getextrema())).max())  # Pillow is faster at this than NumPy by far
    sketch = picture.resize((SKETCH, SKETCH), Image.Resampling.BILINEAR)
    return Sound(encoded.head, hashlib.blake2b(data, digest_size=16).digest(), spread, sketch.tobytes())
