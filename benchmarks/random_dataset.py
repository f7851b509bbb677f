"""A data set in memory, of the size of CIFAR-10's images, for where only the time matters: random pixels."""

from dataclasses import dataclass

import numpy as np

from vitral.data.datasets.arrays import LabeledImages, open_arrays
from vitral.data.samples import Samples

SIDE, CLASSES = 32, tuple("0123456789")


@dataclass(frozen=True)
class Noise:
    """The reader of so many images."""

    images: int

    def load(self, part: str) -> LabeledImages:
        pixels = np.random.default_rng(0).integers(256, size=(self.images, SIDE, SIDE, 3), dtype=np.uint8)
        return LabeledImages(pixels, (np.arange(self.images) % len(CLASSES)).astype(np.uint8))


def open_noise(images: int) -> Samples:
    """So many images to train on, and as many to test with."""
    return open_arrays("noise", CLASSES, Noise(images))
