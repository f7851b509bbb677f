"""Nested random subsets, for studies of how much data is enough: the smaller lies within the larger.

Orders: which image comes when in an epoch, decided by the seed and the epoch alone.
The plan of all batches: which images each step shows, to this process of several.
"""

import hashlib
import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.core.rng import Purpose, rng_for
from vitral.data.samples import Item, Samples

Indices = NDArray[np.int64]


class Sequential(Config):
    """Each image once, in the order of the set, the last batch as small as it comes: for evaluation."""

    kind: Literal["sequential"] = "sequential"

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
        return rng_for(seed, Purpose.ORDER, epoch).permutation(len(labels))

    def batches(self, images: int, batch: int) -> int:
        """How many batches make an epoch."""
        return images // batch


class Balanced(Config):
    """Every class equally often: the images of large classes take turns, those of small ones come again."""

    kind: Literal["balanced"] = "balanced"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The places in the set of the images of an epoch, in turn; as many as there are images."""
        rng = rng_for(seed, Purpose.ORDER, epoch)
        classes, counts = np.unique(labels, return_counts=True)
        rounds = -(-len(labels) // len(classes))
        turns = np.concatenate([rng.permutation(len(classes)) for _ in range(rounds)])[: len(labels)]
        order = np.empty(len(labels), dtype=np.int64)
        # Sorted once: a search for each class would take minutes with the classes of ImageNet-21k.
        images = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        turned = np.bincount(turns, minlength=len(classes))
        slots = np.split(np.argsort(turns, kind="stable"), np.cumsum(turned)[:-1])
        for members, places in zip(images, slots, strict=True):
            shuffles = [rng.permutation(members) for _ in range(-(-len(places) // len(members)))]
            order[places] = np.concatenate([*shuffles, members[:0]])[: len(places)]
        return order

    def batches(self, images: int, batch: int) -> int:
        """How many batches make an epoch."""
        return images // batch


Order = Annotated[Sequential | Shuffled | Balanced, Field(discriminator="kind")]


class World(Config):
    """The processes that show the same batches together, and which of them this is."""

    rank: int = Field(default=0, ge=0)
    size: int = Field(default=1, ge=1)


SINGLE_PROCESS = World()


class SamplerState(Config):
    """Where a stream of batches stands: all that must be known to go on, with any number of workers or processes."""

    step: int = Field(ge=0)
    seed: int
    batch_size: int
    images: int
    order: Order


@dataclass(frozen=True)
class SamplingPlan:
    """Steps are numbered from 0 through all epochs; a batch is that of all processes together."""

    labels: Indices
    order: Order
    batch: int
    seed: int
    world: World = SINGLE_PROCESS
    _orders: dict[int, Indices] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.labels):
            message, hint = "there are no images to show", "choose a split that has some"
            raise ConfigError(message, code="config.empty_split", where="split", hint=hint)
        if self.batch < 1:
            message = f"expected a batch of at least 1, got {self.batch}"
            raise ConfigError(message, code="config.out_of_range", where="batch_size")
        if self.world.rank >= self.world.size:
            message = f"there is no process {self.world.rank} among {self.world.size}, counted from 0"
            raise ConfigError(message, code="config.out_of_range", where="world")
        if not isinstance(self.order, Sequential) and self.batch % self.world.size:
            message = f"a batch of {self.batch} does not divide among {self.world.size} processes"
            raise ConfigError(
                message, code="config.indivisible", where="batch_size", hint=f"use a multiple of {self.world.size}"
            )
        if self.epoch_steps == 0:
            message = f"a batch of {self.batch} is larger than the set, which has {len(self.labels)} images"
            raise ConfigError(
                message, code="config.out_of_range", where="batch_size", hint=f"use at most {len(self.labels)}"
            )

    @cached_property
    def epoch_steps(self) -> int:
        """How many steps make an epoch."""
        return self.order.batches(len(self.labels), self.batch)

    def epoch(self, step: int) -> int:
        """The epoch that a step belongs to."""
        return step // self.epoch_steps

    def places(self, step: int) -> Indices:
        """The places in the set of the images that this process shows at a step: every n-th of n processes."""
        return self._together(step)[self.world.rank :: self.world.size]

    def images(self, step: int) -> int:
        """How many images all processes show together at a step."""
        return len(self._together(step))

    @property
    def rows(self) -> int:
        """The most images that this process shows at a step."""
        return -(-self.batch // self.world.size)

    def position(self, step: int) -> SamplerState:
        """The state of a stream that shows this step next."""
        return SamplerState(step=step, seed=self.seed, batch_size=self.batch, images=len(self.labels), order=self.order)

    def step(self, position: SamplerState) -> int:
        """The step to go on with, if the position belongs to this plan."""
        for name, here in self.position(position.step):
            there = getattr(position, name)
            if here != there:
                message = f"the stream was left with {name} {_word(there)}, and this one has {_word(here)}"
                hint = "go on with the same data and settings, or start anew"
                raise ConfigError(message, code="config.resume_mismatch", where=name, hint=hint)
        return position.step

    def _together(self, step: int) -> Indices:
        order = self._order(self.epoch(step))
        start = step % self.epoch_steps * self.batch
        return order[start : start + self.batch]

    def _order(self, epoch: int) -> Indices:
        if epoch not in self._orders:
            self._orders.clear()  # steps are taken in turn, so only the latest is needed
            self._orders[epoch] = self.order.epoch(self.labels, self.seed, epoch)
        return self._orders[epoch]


def _word(value: object) -> str:
    return value.kind if isinstance(value, Config) and hasattr(value, "kind") else str(value)


def subset(samples: Samples, fraction: float, seed: int = 0) -> Samples:
    """The samples with a share of the training images of every class, at least one; other splits stay whole.

    With the same seed, 10 % is inside 30 %: the images of a class stand in line by a hash of their names.
    """
    if not 0 < fraction <= 1:
        message = f"expected more than 0 and at most 1, got {fraction}"
        raise ConfigError(message, code="config.out_of_range", where="fraction")
    classes: defaultdict[int, list[Item]] = defaultdict(list)
    for item in samples.of("train"):
        classes[item.label].append(item)
    chosen = {
        item.name
        for members in classes.values()
        for item in sorted(members, key=lambda item: _draw(item.name, seed))[: ceil(round(len(members) * fraction, 6))]
    }
    items = tuple(item for item in samples.items if item.split != "train" or item.name in chosen)
    note = f"{fraction:.3g} of the training images of every class (seed {seed})"
    return replace(samples, items=items, notes=(*samples.notes, note))


def _draw(name: str, seed: int) -> bytes:
    # Another purpose than that of a split, or the images left for training would not be drawn evenly.
    return hashlib.blake2b(os.fsencode(f"{seed}\0{name}"), digest_size=16, person=b"subset").digest()
