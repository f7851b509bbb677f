"""The bundled images: 5,000 to train on and 1,000 to test with, of Fashion-MNIST (MIT licence, beside them).

Each file is a `.npy` array of shape (images, 28, 28), compressed with xz, class after class in the order of CLASSES.
`tools/make_sample.py` made them.
"""

import lzma
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitral.data.samples import Item, Samples, Split

FOLDER = Path(__file__).parent / "sample"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EACH: dict[Split, int] = {"train": 500, "test": 100}  # images of every class


class Bundled:
    """A store whose names are `train/0000.npy` and so on; every process unpacks the images once."""

    def read(self, name: str) -> bytes:
        """The image as a `.npy` file of 28 x 28 grey pixels."""
        split, number = name.removesuffix(".npy").split("/")
        file = BytesIO()
        np.save(file, images(split)[int(number)])
        return file.getvalue()

    def address(self, name: str) -> str:
        return f"sample/{name}"

    def size(self, name: str) -> int:
        return len(self.read(name))


def open_sample() -> Samples:
    """The bundled images as samples."""
    items = tuple(
        Item(f"{split}/{number:04}.npy", number // each, split)
        for split, each in EACH.items()
        for number in range(each * len(CLASSES))
    )
    return Samples("sample", CLASSES, items, Bundled())


@cache
def images(split: str) -> NDArray[np.uint8]:
    """The images of a split, (images, 28, 28), not to be written to."""
    packed = (FOLDER / f"{split}.npy.xz").read_bytes()
    found: NDArray[np.uint8] = np.load(BytesIO(lzma.decompress(packed)), allow_pickle=False)
    found.setflags(write=False)
    return found
