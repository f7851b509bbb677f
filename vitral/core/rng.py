"""Counter-based randomness: a draw depends on its seed and counts alone, not on earlier draws."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

WORD = 2**64
# Philox4x64 (Salmon et al., 2011): multipliers of the words, and increments of the key from round to round.
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
STRIDES = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
ROUNDS = 10
LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)

Words = NDArray[np.uint64]


class Purpose(IntEnum):
    """The purpose of a draw: draws for different purposes are independent."""

    ORDER = 1
    VIEW = 2
    MIXING = 3
    SEARCH = 4


def rng_for(seed: int, purpose: Purpose, first: int, second: int = 0) -> np.random.Generator:
    """An independent generator for each seed, purpose and pair of counts, such as an epoch and an index.

    Philox maps a key and a counter to bits. The counts are the upper half of the counter; the lower half allows 2**128
    draws.
    """
    key = np.array([seed % WORD, purpose], dtype=np.uint64)
    counter = np.array([0, 0, first, second], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def uniform_for(seed: int, purpose: Purpose, first: int, seconds: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """The first uniform numbers in [0, 1) of the generator of each second count, (seconds, count).

    A row equals `rng_for(seed, purpose, first, second).random(count)`; creating a generator for each row would take
    most of the time of a small image.
    """
    blocks = -(-count // 4)  # four words each; NumPy counts them from 1
    counter = np.broadcast_arrays(
        np.arange(1, blocks + 1, dtype=np.uint64),
        np.uint64(0),
        np.uint64(first),
        seconds.astype(np.uint64)[:, None],
    )
    words = np.stack(philox(seed % WORD, purpose, *counter), axis=-1)  # (seconds, blocks, 4)
    bits = words.reshape(len(seconds), -1)[:, :count] >> np.uint64(11)  # the 53 of a float
    return bits.astype(np.float64) * 2.0**-53


def philox(key0: int, key1: int, zero: Words, one: Words, two: Words, three: Words) -> tuple[Words, ...]:
    """The four output words of each counter of four words."""
    for step in range(ROUNDS):
        keys = [np.uint64((key + step * stride) % WORD) for key, stride in zip((key0, key1), STRIDES, strict=True)]
        high0, low0 = _product(MULTIPLIERS[0], zero)
        high1, low1 = _product(MULTIPLIERS[1], two)
        zero, one, two, three = high1 ^ one ^ keys[0], low1, high0 ^ three ^ keys[1], low0
    return zero, one, two, three


def _product(factor: int, words: Words) -> tuple[Words, Words]:
    """The upper and the lower word of the products, by half words, since NumPy has no 128-bit integers."""
    high, low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    words_high, words_low = words >> HALF, words & LOW
    crossed = low * words_high
    middle = (low * words_low >> HALF) + (crossed & LOW) + high * words_low
    return high * words_high + (crossed >> HALF) + (middle >> HALF), np.uint64(factor) * words
