"""What every engine promises: pixels as bytes in, answers out.  B images, H x W pixels, C channels, K numbers."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]


class Engine(Protocol):
    """A model that is ready to answer. It never changes, and any thread may ask it at any time."""

    def run(self, pixels: Bytes) -> Numbers:
        """The answers (B, K) to any number of images (B, H, W, C)."""
        ...
