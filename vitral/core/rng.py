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
    MASKING = 5
    FITTING = 6
    ROBUSTNESS = 7


def rng_for(seed: int, purpose: Purpose, first: int, second: int = 0, third: int = 0) -> np.random.Generator:
    """An independent generator for each seed, purpose and counts, such as an epoch, an index and a view.

    Philox maps a key and a counter to bits. The counts are the upper three words of the counter; the lowest one allows
    2**64 blocks of draws.
    """
    return np.random.Generator(_philox_for(seed, purpose, first, second, third))


def _philox_for(seed: int, purpose: Purpose, first: int, second: int, third: int = 0) -> np.random.Philox:
    key = np.array([seed % WORD, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, third, first, second], dtype=np.uint64))


def uniform_for(
    seed: int, purpose: Purpose, first: NDArray[np.int64], second: NDArray[np.int64], count: int, third: int = 0
) -> NDArray[np.float64]:
    """The first uniform numbers in [0, 1) of the generator of each pair of counts, (pairs, count).

    A row equals `rng_for(seed, purpose, first, second, third).random(count)`; creating a generator for each row would
    take most of the time of a small image.
    """
    blocks = -(-count // 4)  # four words each; NumPy counts them from 1
    counter = np.broadcast_arrays(
        np.arange(1, blocks + 1, dtype=np.uint64),
        np.uint64(third),
        first.astype(np.uint64)[:, None],
        second.astype(np.uint64)[:, None],
    )
    words = np.stack(philox(seed % WORD, purpose, *counter), axis=-1)  # (pairs, blocks, 4)
    bits = words.reshape(len(second), -1)[:, :count] >> np.uint64(11)  # the 53 of a float
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


class BatchRng(np.random.Generator):
    """The generator of a microbatch. It also draws for each image by its place in the batch of all processes.

    Those draws are the same however the batch is split into processes and microbatches.
    """

    def __init__(self, seed: int, step: int, number: int, places: NDArray[np.int64]) -> None:
        super().__init__(_philox_for(seed, Purpose.MIXING, step, number))
        self.seed, self.step, self.places = seed, step, places

    def for_images(self, count: int) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1) for each image, (B, count): the same at every call of a step."""
        step = np.full(len(self.places), self.step)
        return uniform_for(self.seed, Purpose.MASKING, step, self.places + 1, count)

    def for_batch(self) -> np.random.Generator:
        """A generator that all processes and microbatches of the step draw the same from."""
        return rng_for(self.seed, Purpose.MASKING, self.step)


def image_uniforms(rng: np.random.Generator, images: int, count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for each of so many images, (B, count)."""
    if not isinstance(rng, BatchRng):
        return rng.random((images, count))
    assert len(rng.places) == images
    return rng.for_images(count)


def image_rngs(rng: np.random.Generator, images: int) -> list[np.random.Generator]:
    """A generator for each of so many images: for draws whose number is not known before."""
    if not isinstance(rng, BatchRng):
        return [rng] * images
    assert len(rng.places) == images
    return [rng_for(rng.seed, Purpose.MASKING, rng.step, int(place) + 1) for place in rng.places]


def batch_rng(rng: np.random.Generator) -> np.random.Generator:
    """The generator for what all images of a batch have in common, in all processes."""
    return rng.for_batch() if isinstance(rng, BatchRng) else rng
