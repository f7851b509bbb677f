"""Exact and near duplicates: in two splits, under two labels, or repeated within a class.

Near duplicates (saved again, resized, slightly brighter) are found by a perceptual hash of 63 bits and confirmed by the
correlation of their thumbnails. A group of duplicates is reported once, by the worst of its problems.
N images, P pairs.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from vitral.data.doctor.checks import Example, Finding, FindingKind, ReadableItem, nonempty
from vitral.data.doctor.examine import THUMBNAIL_SIDE
from vitral.data.samples import Item
from vitral.html.page import plural

MAX_HASH_DISTANCE = 6  # bits in which the hashes of two duplicates may differ
MIN_CORRELATION = 0.997
MIN_CONTRAST = 2.0  # standard deviation of a thumbnail; images with less are skipped, because all of them look alike
BAND = 9  # bits; of 7 bands, two hashes that differ in 6 bits agree in at least one
MAX_LEADERS = 32  # different images compared for one hash; a hash that more images share is uninformative
BLOCK = 4096  # thumbnails, or pairs of them, processed at once

Thumbnails = NDArray[np.uint8]  # (N, 16 * 16 * 3)
Indices = NDArray[np.int64]
Hashes = NDArray[np.uint64]  # (N)


def near_duplicates(thumbnails: Thumbnails) -> list[list[int]]:
    """Groups of two or more images that look the same, as sorted indices."""
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

    Sorted by a band, hashes with the same band are neighbors. Each is compared with the following ones of its band.
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
    """The correlation of each pair, (P): 1 for the same image at any brightness and contrast."""
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
    """Disjoint sets of images. Equal `roots` mean the same group; roots of one group may still differ until `root`."""

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
    """Group the images of equal hash that look the same, and return one image of each group.

    So a thousand copies need a thousand comparisons, not a million.
    """
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


def duplicate_findings(readable: Sequence[ReadableItem], labeled: bool = True) -> list[Finding]:
    """Findings about exact and near duplicates. Each group is an example of one finding, with all of its files.

    Without labels the split is drawn at random from all images, so only duplicates as such matter.
    """
    found: defaultdict[FindingKind, list[tuple[Example, DuplicateGroup]]] = defaultdict(list)
    for group in group_duplicates(readable):
        kind, example = _classify(group) if labeled else _classify_copies(group, by_split=False)
        found[kind].append((example, group))
    examples = {kind: [example for example, _ in pairs] for kind, pairs in found.items()}
    extra = sum(_exact_copies(group, by_split=labeled) for _, group in found["duplicates"])
    return nonempty(
        _contradictions(examples.get("contradiction", [])),
        _leaks(examples.get("leak", [])),
        _near_leaks(examples.get("look-alike leak", [])),
        _near_labels(examples.get("look-alike labels", [])),
        _duplicates(examples.get("duplicates", []), extra, "a class" if labeled else "the dataset"),
        _near_copies(examples.get("look-alikes", []), "a class" if labeled else "the dataset"),
    )


def group_duplicates(readable: Sequence[ReadableItem]) -> list[DuplicateGroup]:
    """The groups of two or more files that show the same image, ordered by their first file."""
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


def _classify(group: DuplicateGroup) -> tuple[FindingKind, Example]:
    """The worst problem of a group, and the group as its example: the files that show the problem, then the others."""
    problems: tuple[tuple[str, FindingKind, FindingKind], ...] = (
        ("label", "contradiction", "look-alike labels"),
        ("split", "leak", "look-alike leak"),
    )
    for field, kind, _ in problems:
        if exact := next((files for files in group if len(first_of_each(files, field)) > 1), None):
            return kind, _example(group, first_of_each(exact, field), IDENTICAL)
    every = list(chain.from_iterable(group))
    for field, _, kind in problems:
        if len(first := first_of_each(every, field)) > 1:
            return kind, _example(group, first, LOOKS_THE_SAME)
    return _classify_copies(group, by_split=True)


def _classify_copies(group: DuplicateGroup, by_split: bool) -> tuple[FindingKind, Example]:
    if _exact_copies(group, by_split):
        exact = next(same for files in group for same in _together(files, by_split) if len(same) > 1)
        return "duplicates", _example(group, exact, IDENTICAL)
    return "look-alikes", _example(group, [], LOOKS_THE_SAME)


def _example(group: DuplicateGroup, first: Sequence[Item], relation: str) -> Example:
    """All files of the group, those of the problem first; the detail says so if others only look the same."""
    others = [item for files in group for item in files if item not in first]
    mixed = relation == IDENTICAL and len(group) > 1
    detail = (
        f"{relation}, and {plural(len(group) - 1, 'file that looks', 'files that look')} the same"
        if mixed
        else relation
    )
    return Example((*first, *others), detail)


def first_of_each(items: Sequence[Item], field: str) -> tuple[Item, ...]:
    """The first item of every split, or of every label."""
    firsts: dict[Hashable, Item] = {}
    for item in items:
        firsts.setdefault(getattr(item, field), item)
    return tuple(firsts.values())


def _exact_copies(group: DuplicateGroup, by_split: bool) -> int:
    """The number of files that could be removed because another one has the same bytes."""
    return sum(len(same) - 1 for files in group for same in _together(files, by_split))


def _together(items: Sequence[Item], by_split: bool) -> list[SameFiles]:
    """The items by split and label, or all of them together."""
    groups: defaultdict[tuple[str, int], SameFiles] = defaultdict(list)
    for item in items:
        groups[(item.split, item.label) if by_split else ("", 0)].append(item)
    return list(groups.values())


def _contradictions(found: Sequence[Example]) -> Finding:
    title = f"{plural(len(found), 'file has', 'files have')} copies under different labels"
    return Finding.of("error", "contradiction", title, found, "keep the copy with the right label")


def _leaks(found: Sequence[Example]) -> Finding:
    title = f"{plural(len(found), 'file is', 'files are')} in more than one split: accuracy will look too high"
    return Finding.of("error", "leak", title, found, "remove all copies but one")


def _near_leaks(found: Sequence[Example]) -> Finding:
    """A near duplicate, such as the next photo of a burst, is not an error: a person has to decide."""
    title = f"{plural(len(found), 'image looks', 'images look')} the same in more than one split"
    hint = "inspect them: if they are copies, the measured accuracy is too high"
    return Finding.of("warning", "look-alike leak", title, found, hint)


def _near_labels(found: Sequence[Example]) -> Finding:
    title = f"{plural(len(found), 'image looks', 'images look')} the same under different labels"
    return Finding.of("warning", "look-alike labels", title, found, "inspect them, and keep the right label")


def _duplicates(found: Sequence[Example], extra: int, where: str) -> Finding:
    title = f"{plural(extra, 'file is an exact copy', 'files are exact copies')} within {where}"
    hint = "remove the copies: they count more than other images in training"
    return Finding("warning", "duplicates", title, extra, tuple(found), hint)


def _near_copies(found: Sequence[Example], where: str) -> Finding:
    title = f"{plural(len(found), 'image has', 'images have')} near duplicates within {where}"
    return Finding.of("note", "look-alikes", title, found, "keep one of each, unless they are intended")
