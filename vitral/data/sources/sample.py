"""The bundled images: 5,000 to train on and 1,000 to test with, of Fashion-MNIST (MIT licence, beside them).

Each file is a `.npy` array of shape (images, 28, 28), compressed with xz, class after class in the order of CLASSES.
`tools/make_sample.py` made them.
"""

import lzma
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from vitral.data.samples import Samples, Split
from vitral.data.sources.arrays import Part, open_arrays

FOLDER = Path(__file__).parent / "sample"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EACH: dict[Split, int] = {"train": 500, "test": 100}  # images of every class


@dataclass(frozen=True)
class Bundled:
    """The reader of the bundled images."""

    def load(self, part: str) -> Part:
        packed = (FOLDER / f"{part}.npy.xz").read_bytes()
        images = np.load(BytesIO(lzma.decompress(packed)), allow_pickle=False)  # (images, 28, 28)
        each = len(images) // len(CLASSES)
        return Part(images, np.arange(len(CLASSES), dtype=np.uint8).repeat(each))


def open_sample() -> Samples:
    """The bundled images as samples."""
    return open_arrays("sample", CLASSES, Bundled())
