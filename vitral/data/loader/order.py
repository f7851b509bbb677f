"""Orders: which image comes when in an epoch, decided by the seed and the epoch alone."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.config import Config
from vitral.data.loader.dice import Purpose, dice

Indices = NDArray[np.int64]


class InOrder(Config):
    """Each image once, in the order of the set, the last batch as small as it comes: for evaluation."""

    kind: Literal["in_order"] = "in_order"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The places in the set of the images of an epoch, in turn."""
        return np.arange(len(labels))

    def batches(self, images: int, batch: int) -> int:
        """How many batches make an epoch."""
        return -(-images // batch)


class Shuffled(Config):
    """Each image once, in a new order every epoch; what does not fill a last batch is left out of that epoch."""

    kind: Literal["shuffled"] = "shuffled"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The places in the set of the images of an epoch, in turn."""
        return dice(seed, Purpose.ORDER, epoch).permutation(len(labels))

    def batches(self, images: int, batch: int) -> int:
        """How many batches make an epoch."""
        return images // batch


class Balanced(Config):
    """Every class equally often: the images of large classes take turns, those of small ones come again."""

    kind: Literal["balanced"] = "balanced"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The places in the set of the images of an epoch, in turn; as many as there are images."""
        throws = dice(seed, Purpose.ORDER, epoch)
        classes, counts = np.unique(labels, return_counts=True)
        rounds = -(-len(labels) // len(classes))
        turns = np.concatenate([throws.permutation(len(classes)) for _ in range(rounds)])[: len(labels)]
        order = np.empty(len(labels), dtype=np.int64)
        # Sorted once: a search for each class would take minutes with the classes of ImageNet-21k.
        images = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        turned = np.bincount(turns, minlength=len(classes))
        slots = np.split(np.argsort(turns, kind="stable"), np.cumsum(turned)[:-1])
        for members, places in zip(images, slots, strict=True):
            shuffles = [throws.permutation(members) for _ in range(-(-len(places) // len(members)))]
            order[places] = np.concatenate([*shuffles, members[:0]])[: len(places)]
        return order

    def batches(self, images: int, batch: int) -> int:
        """How many batches make an epoch."""
        return images // batch


Order = Annotated[InOrder | Shuffled | Balanced, Field(discriminator="kind")]
