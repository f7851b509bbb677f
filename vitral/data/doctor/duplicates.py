"""Exact and near duplicates: in two splits, under two labels, or repeated within a class.

Near duplicates (saved again, resized, a little brighter) are found by a perceptual hash of 63 bits, and confirmed by
the correlation of their thumbnails.  N images, P pairs.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from vitral.data.doctor.checks import Example, Finding, ReadableItem, nonempty
from vitral.data.doctor.examine import THUMBNAIL_SIDE
from vitral.data.samples import Item
from vitral.html.page import plural

MAX_HASH_DISTANCE = 6  # by which the hashes of two copies may differ
MIN_CORRELATION = 0.997
MIN_CONTRAST = 2.0  # standard deviation of a thumbnail: flatter ones all look alike, and are skipped
BAND = 9  # bits; 7 bands make 63, so that two hashes within 6 bits are equal in at least one
MAX_LEADERS = 32  # distinct images compared within one hash; a hash shared by more is uninformative
BLOCK = 4096  # thumbnails, or pairs of them, processed at once

Thumbnails = NDArray[np.uint8]  # (N, 16 * 16 * 3)
Indices = NDArray[np.int64]
Hashes = NDArray[np.uint64]  # (N)


def near_duplicates(thumbnails: Thumbnails) -> list[list[int]]:
    """Groups of two or more images that look the same, each in order."""
    groups = _Groups(len(thumbnails))
    hashes, contrast = perceptual_hashes(thumbnails)
    informative = np.flatnonzero(contrast >= MIN_CONTRAST)
    leaders = _merge_equal_hashes(thumbnails, hashes, informative, groups)
    for one, other in near_pairs(hashes[leaders]):
        first, second = leaders[one], leaders[other]
        apart = groups.roots[first] != groups.roots[second]
        _join(thumbnails, first[apart], second[apart], groups)
    return groups.listed()


def perceptual_hashes(thumbnails: Thumbnails) -> tuple[Hashes, NDArray[np.float64]]:
    """The hash and the contrast of each image."""
    hashes = np.zeros(len(thumbnails), dtype=np.uint64)
    contrast = np.zeros(len(thumbnails))
    columns = np.arange(THUMBNAIL_SIDE)
    waves = np.cos(np.pi * np.outer(np.arange(8), 2 * columns + 1) / (2 * THUMBNAIL_SIDE))  # (8, 16): DCT-II
    for start in range(0, len(thumbnails), BLOCK):
        block = slice(start, start + BLOCK)
        pictures = thumbnails[block].reshape(-1, THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3).astype(np.float64)
        gray = pictures @ np.array([0.299, 0.587, 0.114])  # (n, 16, 16)
        low = (waves @ gray @ waves.T).reshape(-1, 64)[:, 1:]  # (n, 63), without the mean
        bits = low > np.median(low, axis=1, keepdims=True)
        hashes[block] = bits @ (np.uint64(1) << np.arange(63, dtype=np.uint64))
        contrast[block] = pictures.std(axis=(1, 2, 3))
    return hashes, contrast


def near_pairs(hashes: Hashes) -> Iterator[tuple[Indices, Indices]]:
    """All pairs within MAX_HASH_DISTANCE, each once or more, in batches of first and second: (P), (P).

    Sorting by a band puts hashes that agree in it next to each other. Each is then compared with the next one, the
    one after, and so on to the end of its bucket.
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
            near = here[np.bitwise_count(sorted_hashes[here] ^ sorted_hashes[here + shift]) <= MAX_HASH_DISTANCE]
            if len(near):
                yield order[near], order[near + shift]


def correlation(thumbnails: Thumbnails, first: Indices, second: Indices) -> NDArray[np.float64]:
    """The correlation of each pair: 1 for the same image at any brightness and contrast; (P)."""
    found = np.empty(len(first))
    for start in range(0, len(first), BLOCK):
        block = slice(start, start + BLOCK)
        one, other = _centered(thumbnails[first[block]]), _centered(thumbnails[second[block]])
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        found[block] = (one * other).sum(axis=1) / np.maximum(lengths, 1e-9)
    return found


def _centered(thumbnails: Thumbnails) -> NDArray[np.float32]:
    values = thumbnails.astype(np.float32)
    return values - values.mean(axis=1, keepdims=True)


class _Groups:
    """Disjoint sets of images. `roots` follows the unions with a delay: equal roots are always one group."""

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


def _join(thumbnails: Thumbnails, first: Indices, second: Indices, groups: _Groups) -> None:
    same = correlation(thumbnails, first, second) >= MIN_CORRELATION
    for one, other in zip(first[same].tolist(), second[same].tolist(), strict=True):
        groups.join(one, other)


def _merge_equal_hashes(thumbnails: Thumbnails, hashes: Hashes, members: Indices, groups: _Groups) -> Indices:
    """One image of each look among those of equal hash, so that a thousand copies take a thousand comparisons."""
    order = members[np.argsort(hashes[members], kind="stable")]
    starts = np.flatnonzero(np.diff(hashes[order])) + 1
    leaders: list[int] = []
    for bucket in np.split(order, starts):
        rest = bucket
        for _ in range(MAX_LEADERS):
            if not len(rest):
                break
            leader, rest = rest[0], rest[1:]
            leaders.append(int(leader))
            same = correlation(thumbnails, np.full(len(rest), leader), rest) >= MIN_CORRELATION
            groups.roots[rest[same]] = leader
            rest = rest[~same]
    return np.array(leaders, dtype=np.int64)


IDENTICAL, LOOKS_THE_SAME = "the same file", "looks the same"

SameFiles = list[Item]  # with the same bytes
DuplicateGroup = list[SameFiles]  # all the files that look the same


def duplicate_findings(readable: Sequence[ReadableItem]) -> list[Finding]:
    """Findings about exact and near duplicates."""
    groups = group_duplicates(readable)
    exact = [files for group in groups for files in group]
    leaks = list(_across(groups, "split"))
    return nonempty(
        _contradictions(list(_across([[files] for files in exact], "label"))),
        _leaks([example for example in leaks if example.detail == IDENTICAL]),
        _near_leaks([example for example in leaks if example.detail == LOOKS_THE_SAME]),
        _near_labels([example for example in _across(groups, "label") if example.detail == LOOKS_THE_SAME]),
        _exact_copies([Example(tuple(same), IDENTICAL) for files in exact for same in _together(files)]),
        _near_copies(groups),
    )


def group_duplicates(readable: Sequence[ReadableItem]) -> list[DuplicateGroup]:
    """The groups of two or more files that show the same image, in the order of the first."""
    files: defaultdict[bytes, SameFiles] = defaultdict(list)
    thumbnails: dict[bytes, bytes] = {}
    for item, result in readable:
        files[result.digest].append(item)
        thumbnails[result.digest] = result.thumbnail
    distinct = list(files)
    values = np.frombuffer(b"".join(thumbnails[digest] for digest in distinct), dtype=np.uint8)
    groups = near_duplicates(values.reshape(len(distinct), -1)) if distinct else []
    grouped = set(chain.from_iterable(groups))
    groups += [[index] for index in range(len(distinct)) if index not in grouped]
    found = [[files[distinct[index]] for index in group] for group in sorted(groups)]
    return [group for group in found if len(group) > 1 or len(group[0]) > 1]


def first_of_each(items: Sequence[Item], field: str) -> tuple[Item, ...]:
    """The first item of every split, or of every label."""
    firsts: dict[Hashable, Item] = {}
    for item in items:
        firsts.setdefault(getattr(item, field), item)
    return tuple(firsts.values())


def _across(groups: Sequence[DuplicateGroup], field: str) -> Iterator[Example]:
    """The images in two splits, or under two labels; an exact duplicate rather than a near one."""
    for group in groups:
        exact = next((files for files in group if len(first_of_each(files, field)) > 1), None)
        items = first_of_each(exact or list(chain.from_iterable(group)), field)
        if len(items) > 1:
            yield Example(items, IDENTICAL if exact else LOOKS_THE_SAME)


def _contradictions(found: Sequence[Example]) -> Finding:
    title = f"{plural(len(found), 'file is', 'files are')} under two labels or more"
    return Finding.of("error", "contradiction", title, found, "keep the one with the right label")


def _leaks(found: Sequence[Example]) -> Finding:
    title = f"{plural(len(found), 'file is', 'files are')} in two splits: accuracy will look too high"
    return Finding.of("error", "leak", title, found, "keep each in one split only")


def _near_leaks(found: Sequence[Example]) -> Finding:
    """A near duplicate, such as the next photo of a burst, is no error: a person must decide."""
    title = f"{plural(len(found), 'image looks', 'images look')} the same in two splits"
    hint = "look at them: if they are copies, accuracy will look too high"
    return Finding.of("warning", "look-alike leak", title, found, hint)


def _near_labels(found: Sequence[Example]) -> Finding:
    title = f"{plural(len(found), 'image looks', 'images look')} the same under two labels"
    return Finding.of("warning", "look-alike labels", title, found, "look at them, and keep the right one")


def _exact_copies(groups: Sequence[Example]) -> Finding:
    found = tuple(example for example in groups if len(example.items) > 1)
    extra = sum(len(example.items) - 1 for example in found)
    title = f"{plural(extra, 'file is an exact copy', 'files are exact copies')} within a class"
    return Finding("warning", "duplicates", title, extra, found, "remove the copies: they count double in training")


def _near_copies(groups: Sequence[DuplicateGroup]) -> Finding:
    firsts = [[same[0] for files in group for same in _together(files)] for group in groups]
    found = [Example(tuple(same), LOOKS_THE_SAME) for some in firsts for same in _together(some) if len(same) > 1]
    title = f"{plural(len(found), 'image has', 'images have')} near duplicates within a class"
    return Finding.of("note", "look-alikes", title, found, "keep one of each, unless they are intended")


def _together(items: Sequence[Item]) -> list[SameFiles]:
    """The items by split and label."""
    groups: defaultdict[tuple[str, int], SameFiles] = defaultdict(list)
    for item in items:
        groups[item.split, item.label].append(item)
    return list(groups.values())
