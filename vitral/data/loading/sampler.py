"""Which images each step shows: their order in an epoch, the batches of a process, and random subsets of a dataset.

Everything depends on the seed, the epoch and the step alone, so a run can resume at any step.
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

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.core.rng import Purpose, rng_for
from vitral.data.samples import Item, Samples, StratifiedSplit, by_split_and_name, stratified_split

Indices = NDArray[np.int64]


class Sequential(Config):
    """Each image once, in the order of the dataset; the last batch may be smaller. For evaluation."""

    kind: Literal["sequential"] = "sequential"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The indices of the images of an epoch, in order."""
        return np.arange(len(labels))

    def num_batches(self, images: int, batch_size: int) -> int:
        """The number of batches of an epoch."""
        return -(-images // batch_size)


class Shuffled(Config):
    """Each image once, in a new order every epoch; an incomplete last batch is dropped."""

    kind: Literal["shuffled"] = "shuffled"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The indices of the images of an epoch, in order."""
        return rng_for(seed, Purpose.ORDER, epoch).permutation(len(labels))

    def num_batches(self, images: int, batch_size: int) -> int:
        """The number of batches of an epoch."""
        return images // batch_size


class Balanced(Config):
    """Every class equally often: images of small classes are repeated, images of large ones take turns."""

    kind: Literal["balanced"] = "balanced"

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The indices of the images of an epoch, in order; as many as there are images."""
        rng = rng_for(seed, Purpose.ORDER, epoch)
        classes, counts = np.unique(labels, return_counts=True)
        rounds = -(-len(labels) // len(classes))
        turns = np.concatenate([rng.permutation(len(classes)) for _ in range(rounds)])[: len(labels)]
        order = np.empty(len(labels), dtype=np.int64)
        # Sorted once: a search for each class would take minutes with the 21k classes of ImageNet-21k.
        images = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        turned = np.bincount(turns, minlength=len(classes))
        slots = np.split(np.argsort(turns, kind="stable"), np.cumsum(turned)[:-1])
        for members, places in zip(images, slots, strict=True):
            shuffles = [rng.permutation(members) for _ in range(-(-len(places) // len(members)))]
            order[places] = np.concatenate([*shuffles, members[:0]])[: len(places)]
        return order

    def num_batches(self, images: int, batch_size: int) -> int:
        """The number of batches of an epoch."""
        return images // batch_size


class Repeated(Config):
    """Each image several times in a row with different augmentations (arXiv 1901.09335), in a new order every epoch.

    An epoch has as many images as the dataset, repetitions included, so each image is part of one epoch in `repeats`;
    an incomplete last batch is dropped.
    """

    kind: Literal["repeated"] = "repeated"
    repeats: int = Field(default=3, ge=1)  # DeiT's

    def epoch(self, labels: Indices, seed: int, epoch: int) -> Indices:
        """The indices of the images of an epoch, in order."""
        distinct = -(-len(labels) // self.repeats)
        order = rng_for(seed, Purpose.ORDER, epoch // self.repeats).permutation(len(labels))
        chosen = np.arange(distinct) + epoch % self.repeats * distinct
        return order.take(chosen, mode="wrap").repeat(self.repeats)[: len(labels)]

    def num_batches(self, images: int, batch_size: int) -> int:
        """The number of batches of an epoch."""
        return images // batch_size


Order = Annotated[Sequential | Shuffled | Balanced | Repeated, OpenUnion()]
REPETITION = 2**32  # more than there are epochs


class World(Config):
    """The number of processes of a run, and the rank of this one."""

    rank: int = Field(default=0, ge=0)
    size: int = Field(default=1, ge=1)


SINGLE_PROCESS = World()


class SamplerState(Config):
    """The state of a sampler: all that is needed to resume, with any number of workers or processes."""

    step: int = Field(ge=0)
    seed: int
    batch_size: int
    images: int
    order: Order


@dataclass(frozen=True)
class SamplingPlan:
    """The batches of a run. Steps are numbered from 0 through all epochs; `batch_size` is that of all processes."""

    labels: Indices
    order: Order
    batch_size: int
    seed: int
    world: World = SINGLE_PROCESS
    _orders: dict[int, Indices] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        images, batch_size, world, where, hint = len(self.labels), self.batch_size, self.world, "batch_size", ""
        if not images:
            code, where, message, hint = "config.empty_split", "split", "there are no images", "choose another split"
        elif batch_size < 1:
            code, message = "config.out_of_range", f"expected at least 1, got {batch_size}"
        elif world.rank >= world.size:
            code, where = "config.out_of_range", "world"
            message = f"expected a rank below {world.size}, got {world.rank}"
        elif not isinstance(self.order, Sequential) and batch_size % world.size:
            code, hint = "config.indivisible", f"use a multiple of {world.size}"
            message = f"a batch of {batch_size} is not divisible by {world.size} processes"
        elif self.steps_per_epoch == 0:
            code, hint = "config.out_of_range", f"use at most {images}"
            message = f"a batch of {batch_size} is larger than the dataset of {images} images"
        else:
            return
        raise ConfigError(message, code=code, where=where, hint=hint)

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of steps of an epoch."""
        return self.order.num_batches(len(self.labels), self.batch_size)

    def epoch(self, step: int) -> int:
        """The epoch of a step."""
        return step // self.steps_per_epoch

    def indices(self, step: int) -> Indices:
        """The indices of the images of this process at a step: every n-th of the batch with n processes."""
        return self._global_indices(step)[self.world.rank :: self.world.size]

    def views(self, step: int) -> Indices:
        """What the random views of the images of this process are drawn by, beside seed and index.

        It is the epoch, and another number for each repetition of an image in a row.
        """
        start = step % self.steps_per_epoch * self.batch_size
        places = np.arange(start, start + self.num_images(step))[self.world.rank :: self.world.size]
        return self.epoch(step) + places % getattr(self.order, "repeats", 1) * REPETITION

    def places(self, step: int) -> Indices:
        """The places of the images of this process in the batch of all processes."""
        return np.arange(self.num_images(step))[self.world.rank :: self.world.size]

    def num_images(self, step: int) -> int:
        """The number of images of the batch of all processes at a step."""
        return len(self._global_indices(step))

    @property
    def max_rows(self) -> int:
        """The largest number of images of this process at a step."""
        return -(-self.batch_size // self.world.size)

    def state(self, step: int) -> SamplerState:
        """The state before a step."""
        images = len(self.labels)
        return SamplerState(step=step, seed=self.seed, batch_size=self.batch_size, images=images, order=self.order)

    def resume_step(self, state: SamplerState) -> int:
        """The step to resume from; the state must be one of this plan."""
        for name, here in self.state(state.step):
            there = getattr(state, name)
            if here != there:
                message = f"expected {_kind(there)}, as in the saved run, got {_kind(here)}"
                hint = "resume with the same data and settings, or start a new run"
                raise ConfigError(message, code="config.resume_mismatch", where=name, hint=hint)
        return state.step

    def _global_indices(self, step: int) -> Indices:
        epoch, start = self.epoch(step), step % self.steps_per_epoch * self.batch_size
        if epoch not in self._orders:
            self._orders.clear()  # steps are taken in order, so only the latest epoch is needed
            self._orders[epoch] = self.order.epoch(self.labels, self.seed, epoch)
        return self._orders[epoch][start : start + self.batch_size]


def _kind(value: object) -> str:
    return value.kind if isinstance(value, Config) and hasattr(value, "kind") else str(value)


def subset(samples: Samples, fraction: float, seed: int = 0) -> Samples:
    """The samples with a fraction of the training images of every class, at least one; other splits are unchanged.

    With the same seed the smaller subset is part of the larger: images are ordered by a hash of their names.
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
        for item in sorted(members, key=lambda item: _hash(item.name, seed))[: ceil(round(len(members) * fraction, 6))]
    }
    items = tuple(item for item in samples.items if item.split != "train" or item.name in chosen)
    note = f"{fraction:.3g} of the training images of every class (seed {seed})"
    return replace(samples, items=items, notes=(*samples.notes, note))


def hold_out(samples: Samples, split: StratifiedSplit) -> Samples:
    """The samples with a part of the training images of every class as validation images, of which it has none."""
    if samples.of("val"):
        message, hint = "the dataset has validation images of its own", "leave out hold_out"
        raise ConfigError(message, code="config.conflict", where="hold_out", hint=hint)
    divided, _ = stratified_split((row for row in samples.rows() if row.split == "train"), split)
    held = {row.name for row in divided if row.split == "val"}
    items = [item._replace(split="val") if item.name in held else item for item in samples.items]
    note = f"{split.fraction:.3g} of the training images of every class are validation images (seed {split.seed})"
    return replace(samples, items=tuple(sorted(items, key=by_split_and_name)), notes=(*samples.notes, note))


def _hash(name: str, seed: int) -> bytes:
    # The key differs from that of a split: else the remaining training images would not be drawn evenly.
    return hashlib.blake2b(os.fsencode(f"{seed}\0{name}"), digest_size=16, person=b"subset").digest()
