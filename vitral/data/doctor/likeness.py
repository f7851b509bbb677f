"""Pictures that look the same: saved again, resized, or a little brighter.  N pictures, P pairs.

Two steps. A hash of 63 bits finds the candidates: whether each of the lowest frequencies of the picture but the mean is
above their median. The sketches themselves decide: their correlation over 16 x 16 x 3 values.

The hash is of the cosine transform rather than of differences between neighbours: among the 6,000 pictures of
Fashion-MNIST in `sample`, clothes on black that are naturally alike, differences give thousands of pairs of equal
hashes and this gives 9. The limits were chosen by looking at `sample` and at copies of 200 photos out of a set of 396
of ants and bees, and then measured on all 396, so they are fitted to these two sets: saved again as PNG or as JPEG of
quality 50 or 20, halved, or squeezed to a square, a copy differs by at most 4 bits, and 98 of 100 reach 0.997.
No two different photos pass both steps. Of the 6,154 pairs of `sample` within 6 bits three do: a pullover and a dress
that are there twice, and two pairs of trousers that can hardly be told apart. Of copies a tenth brighter 92 of 100 are
found; a crop or a mirrored copy is not.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vitral.data.doctor.examine import SKETCH

MOST_BITS = 6  # by which the hashes of two copies may differ
LEAST_CORRELATION = 0.997
LEAST_CONTRAST = 2.0  # standard deviation of a sketch: flatter ones are alike whatever they show, and are left out
BAND = 9  # bits; 7 bands make 63, so that two hashes within 6 bits are equal in at least one
MOST_LEADERS = 32  # pictures of one hash that are told apart; a hash that more of them share says nothing
BLOCK = 4096  # sketches, or pairs of them, that are worked on at once

Sketches = NDArray[np.uint8]  # (N, 16 * 16 * 3)
Indices = NDArray[np.int64]
Hashes = NDArray[np.uint64]  # (N)


def alike(sketches: Sketches) -> list[list[int]]:
    """Groups of two or more pictures that look the same, each in order."""
    groups = _Groups(len(sketches))
    hashes, contrast = hashed(sketches)
    informative = np.flatnonzero(contrast >= LEAST_CONTRAST)
    leaders = _collapsed(sketches, hashes, informative, groups)
    for one, other in near_pairs(hashes[leaders]):
        first, second = leaders[one], leaders[other]
        apart = groups.roots[first] != groups.roots[second]
        _join(sketches, first[apart], second[apart], groups)
    return groups.listed()


def hashed(sketches: Sketches) -> tuple[Hashes, NDArray[np.float64]]:
    """The hash and the contrast of each picture."""
    hashes = np.zeros(len(sketches), dtype=np.uint64)
    contrast = np.zeros(len(sketches))
    places = np.arange(SKETCH)
    waves = np.cos(np.pi * np.outer(np.arange(8), 2 * places + 1) / (2 * SKETCH))  # (8, 16): DCT-II
    for start in range(0, len(sketches), BLOCK):
        block = slice(start, start + BLOCK)
        pictures = sketches[block].reshape(-1, SKETCH, SKETCH, 3).astype(np.float64)
        grey = pictures @ np.array([0.299, 0.587, 0.114])  # (n, 16, 16)
        low = (waves @ grey @ waves.T).reshape(-1, 64)[:, 1:]  # (n, 63), without the mean
        bits = low > np.median(low, axis=1, keepdims=True)
        hashes[block] = bits @ (np.uint64(1) << np.arange(63, dtype=np.uint64))
        contrast[block] = pictures.std(axis=(1, 2, 3))
    return hashes, contrast


def near_pairs(hashes: Hashes) -> Iterator[tuple[Indices, Indices]]:
    """All pairs within MOST_BITS, each once or more, in batches of first and second: (P), (P).

    Hashes that agree in a band stand together once sorted by it, so that each is compared with the next, the one
    after, and so on to the end of its bucket.
    """
    for band in range(0, 63, BAND):
        keys = (hashes >> np.uint64(band)) & np.uint64(2**BAND - 1)
        order = np.lexsort((hashes, keys))
        sorted_keys, sorted_hashes = keys[order], hashes[order]
        ends = np.searchsorted(sorted_keys, sorted_keys, side="right")
        here = np.arange(len(hashes))
        for shift in range(1, len(hashes)):
            here = here[here + shift < ends[here]]
            if not len(here):
                break
            near = here[np.bitwise_count(sorted_hashes[here] ^ sorted_hashes[here + shift]) <= MOST_BITS]
            if len(near):
                yield order[near], order[near + shift]


def correlation(sketches: Sketches, first: Indices, second: Indices) -> NDArray[np.float64]:
    """How alike the pictures of each pair are: 1 for the same, whatever the brightness and the contrast; (P)."""
    found = np.empty(len(first))
    for start in range(0, len(first), BLOCK):
        block = slice(start, start + BLOCK)
        one, other = _centred(sketches[first[block]]), _centred(sketches[second[block]])
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        found[block] = (one * other).sum(axis=1) / np.maximum(lengths, 1e-9)
    return found


def _centred(sketches: Sketches) -> NDArray[np.float32]:
    values = sketches.astype(np.float32)
    return values - values.mean(axis=1, keepdims=True)


class _Groups:
    """Disjoint sets of pictures. `roots` follows the unions with a delay: equal roots are always one group."""

    def __init__(self, size: int) -> None:
        self.roots = np.arange(size)

    def join(self, first: int, second: int) -> None:
        one, other = sorted((self.root(first), self.root(second)))
        self.roots[other] = one

    def root(self, index: int) -> int:
        path = [index]
        while self.roots[path[-1]] != path[-1]:
            path.append(int(self.roots[path[-1]]))
        self.roots[path] = path[-1]
        return path[-1]

    def listed(self) -> list[list[int]]:
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for index in range(len(self.roots)):
            groups[self.root(index)].append(index)
        return [group for group in groups.values() if len(group) > 1]


def _join(sketches: Sketches, first: Indices, second: Indices, groups: _Groups) -> None:
    same = correlation(sketches, first, second) >= LEAST_CORRELATION
    for one, other in zip(first[same].tolist(), second[same].tolist(), strict=True):
        groups.join(one, other)


def _collapsed(sketches: Sketches, hashes: Hashes, members: Indices, groups: _Groups) -> Indices:
    """One picture of each look among those of equal hash, so that a thousand stills are compared a thousand times."""
    order = members[np.argsort(hashes[members], kind="stable")]
    starts = np.flatnonzero(np.diff(hashes[order])) + 1
    leaders: list[int] = []
    for bucket in np.split(order, starts):
        rest = bucket
        for _ in range(MOST_LEADERS):
            if not len(rest):
                break
            leader, rest = rest[0], rest[1:]
            leaders.append(int(leader))
            same = correlation(sketches, np.full(len(rest), leader), rest) >= LEAST_CORRELATION
            groups.roots[rest[same]] = leader
            rest = rest[~same]
    return np.array(leaders, dtype=np.int64)
