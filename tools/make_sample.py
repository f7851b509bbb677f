"""Make the bundled images of vitral from Fashion-MNIST: the first 500 training and 100 test images of each class.

Run `python -m tools.make_sample FOLDER`, where FOLDER holds the four `*-ubyte.gz` files of the data set (the Debian
package dataset-fashion-mnist puts them into /usr/share/datasets/fashion-mnist). Running it again writes the same bytes.
"""

import lzma
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitral.data.datasets.arrays import IdxReader
from vitral.data.datasets.named import CLASSES, EACH, FOLDER
from vitral.data.samples import Split


def first_of_each(images: NDArray[np.uint8], labels: NDArray[np.uint8], each: int) -> NDArray[np.uint8]:
    """The first so many images of every class, class after class."""
    return images[np.concatenate([np.flatnonzero(labels == label)[:each] for label in range(len(CLASSES))])]


def pack(images: NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    np.save(file, images)
    return lzma.compress(file.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def selection(source: Path, split: Split) -> NDArray[np.uint8]:
    """The images to bundle, from the files of the data set."""
    images, labels = IdxReader(str(source)).load(split)
    return first_of_each(images, labels, EACH[split])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.make_sample FOLDER")
    for split in EACH:
        (FOLDER / f"{split}.npy.xz").write_bytes(pack(selection(Path(sys.argv[1]), split)))
