"""Randomness that is counted, not streamed: what a throw gives depends on its numbers and on nothing before it."""

from enum import IntEnum

import numpy as np

WORD = 2**64


class Purpose(IntEnum):
    """What is drawn for: draws of one purpose tell nothing of another's."""

    ORDER = 1
    VIEW = 2
    MIXING = 3


def dice(seed: int, purpose: Purpose, first: int, second: int = 0) -> np.random.Generator:
    """A generator of its own for each seed, purpose and pair of counts, such as an epoch and an index.

    Philox turns a key and a counter into bits. The counts are the upper half of the counter; the lower half is left
    for 2**128 draws.
    """
    key = np.array([seed % WORD, purpose], dtype=np.uint64)
    counter = np.array([0, 0, first, second], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
