"""What every engine promises: pixels as bytes in, answers out.  B images, H x W pixels, C channels, K numbers."""

from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]
AUTO = "auto"  # whichever engine is quickest
Answer = Literal["logits", "features"]
Precision = Literal["float32", "int8"]  # what the layers of blocks multiply
INPUT = "pixels"  # what the images are called wherever a graph is written to


class Engine(Protocol):
    """A model that is ready to answer. It never changes, and any thread may ask it at any time."""

    def run(self, pixels: Bytes) -> Numbers:
        """The answers (B, K) to any number of images (B, H, W, C)."""
        ...


@runtime_checkable
class Undecided(Engine, Protocol):
    """An engine that first answers in a way that is ready at once, and not the quickest."""

    def settle(self) -> None:
        """Be as quick as can be from now on: many images are to come."""
        ...


def in_batches(engine: Engine, pixels: Bytes, batch: int) -> Numbers:
    """The answers to images in batches of exactly so many: the last is filled up, and what fills it forgotten."""
    found = []
    for start in range(0, len(pixels), batch):
        some = pixels[start : start + batch]
        filled = np.concatenate([some, np.repeat(some[-1:], batch - len(some), axis=0)])
        found.append(engine.run(np.ascontiguousarray(filled))[: len(some)])
    return np.concatenate(found)
