"""Generated images of shapes: how many there are, where one is, or how it is turned.

Stand-ins for tasks of VTAB (arXiv 1910.04867) that ask for structure: 1,000 gray images of 32 x 32 pixels to train on,
and 1,000 to test, always the same. Shapes have a random size and brightness on noise, so that no sum of pixels tells
the label.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import numpy as np
from numpy.typing import NDArray

from vitral.data.datasets import arrays
from vitral.data.datasets.arrays import LabeledImages
from vitral.data.samples import Samples

SIDE, IMAGES = 32, 1_000
PARTS = {"train": 0, "test": 1}  # the first number of their seeds
BINS = 8  # of places and angles
MOST = 6  # shapes
Plane = NDArray[np.float64]  # (32, 32), from 0 to 1
ROWS, COLUMNS = np.mgrid[0:SIDE, 0:SIDE] + 0.5  # each (32, 32), in pixels


def disc(row: float, column: float, radius: float) -> Plane:
    """A disc with a soft edge of a pixel."""
    return np.clip(radius + 0.5 - np.hypot(ROWS - row, COLUMNS - column), 0, 1)


def ellipse(row: float, column: float, length: float, width: float, angle: float) -> Plane:
    """An ellipse whose longer axis is turned from the horizontal."""
    down, right = ROWS - row, COLUMNS - column
    along = (right * np.cos(angle) + down * np.sin(angle)) / length
    across = (down * np.cos(angle) - right * np.sin(angle)) / width
    return np.clip((1 - np.hypot(along, across)) * width + 0.5, 0, 1)


def count(label: int, rng: np.random.Generator) -> Plane:
    """One disc more than the label, which do not touch."""
    places: list[tuple[float, float, float]] = []
    while len(places) <= label:
        radius = rng.uniform(2, 4)
        row, column = rng.uniform(radius + 1, SIDE - radius - 1, 2)
        if all(np.hypot(row - r, column - c) > radius + other + 2.5 for r, c, other in places):
            places.append((row, column, radius))
    return sum((rng.uniform(0.4, 1) * disc(*place) for place in places), np.zeros((SIDE, SIDE)))


def location(label: int, rng: np.random.Generator) -> Plane:
    """A disc in a column of eight."""
    column = (label + rng.uniform(0.1, 0.9)) * SIDE / BINS
    return rng.uniform(0.4, 1) * disc(rng.uniform(5, SIDE - 5), column, rng.uniform(2, 5))


def orientation(label: int, rng: np.random.Generator) -> Plane:
    """An ellipse at one of eight angles of half a turn."""
    row, column = rng.uniform(10, SIDE - 10, 2)
    angle = (label + rng.uniform(-0.3, 0.3)) * pi / BINS
    return rng.uniform(0.4, 1) * ellipse(row, column, rng.uniform(7, 10), rng.uniform(2, 3), angle)


DRAW: dict[str, Callable[[int, np.random.Generator], Plane]] = {
    "shapes-count": count,
    "shapes-location": location,
    "shapes-orientation": orientation,
}
CLASSES = {
    "shapes-count": tuple(str(number + 1) for number in range(MOST)),
    "shapes-location": tuple(f"column {number + 1}" for number in range(BINS)),
    "shapes-orientation": tuple(f"{number * 180 / BINS:g} degrees" for number in range(BINS)),
}


@dataclass(frozen=True)
class ShapesReader:
    """The generator of a task. An image depends on its part and number alone."""

    task: str

    def load(self, part: str) -> LabeledImages:
        """All images of a part, with the labels in turn."""
        labels = np.arange(IMAGES, dtype=np.uint8) % len(CLASSES[self.task])
        return LabeledImages(
            np.stack([self._image(part, number, int(labels[number])) for number in range(IMAGES)]), labels
        )

    def _image(self, part: str, number: int, label: int) -> NDArray[np.uint8]:
        rng = np.random.default_rng([PARTS[part], list(DRAW).index(self.task), number])
        levels = rng.uniform(0, 60) + 150 * DRAW[self.task](label, rng) + rng.normal(0, 12, (SIDE, SIDE))
        return levels.clip(0, 255).astype(np.uint8)


def open_shapes(task: str) -> Samples:
    """The samples of a task."""
    return arrays.open_arrays(task, CLASSES[task], ShapesReader(task), ("generated",))
