"""Nested random subsets, for studies of how much data is enough: the smaller lies within the larger."""

import hashlib
import os
from collections import defaultdict
from dataclasses import replace
from math import ceil

from vitral.data.samples import Item, Samples
from vitral.errors import ConfigError


def subset(samples: Samples, fraction: float, seed: int = 0) -> Samples:
    """The samples with a share of the training images of every class, at least one; other splits stay whole.

    With the same seed, 10 % is inside 30 %: the images of a class stand in line by a hash of their names.
    """
    if not 0 < fraction <= 1:
        what = f"expected more than 0 and at most 1, got {fraction}"
        raise ConfigError(what, code="config.out_of_range", where="fraction")
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
