"""Fast engines, as they are handed in from outside.  B images, H x W pixels, C channels, K classes."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitral.errors import ConfigError
from vitral.weights.bundle import Bundle
from vitral.weights.load import Loaded

Pixels = NDArray[np.uint8]  # (B, H, W, C)
Numbers = NDArray[np.float32]  # (B, K)
Ask = Callable[[Pixels], Numbers]  # a fast engine, which answers


class Fewer(Protocol):
    """Fast engines for a model, in which every layer merges some of its tokens."""

    @property
    def engine(self) -> str:
        """Which kind of engine they are."""
        ...

    def check(self, bundle: Bundle) -> None:
        """Refuse a model whose tokens cannot be merged."""
        ...

    def tokens(self, bundle: Bundle, per_layer: int) -> int:
        """How many tokens the last layer sees when each layer merges so many."""
        ...

    def build(self, loaded: Loaded, per_layer: int) -> Ask:
        """An engine in which each layer merges so many."""
        ...


class NoEngine:
    """What stands there where no engine was handed in."""

    engine = "none"

    def check(self, bundle: Bundle) -> None:
        what = "no fast engine was handed in"
        raise ConfigError(what, code="config.missing_value", where="tools.fewer", remedy="use vitral.evaluate")

    def tokens(self, bundle: Bundle, per_layer: int) -> int:
        raise NotImplementedError

    def build(self, loaded: Loaded, per_layer: int) -> Ask:
        raise NotImplementedError
