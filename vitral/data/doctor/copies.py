"""Findings about pictures that are there more than once: in two splits, under two labels, or for nothing."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

import numpy as np

from vitral.data.doctor.files import Look
from vitral.data.doctor.finding import Example, Finding, plural
from vitral.data.doctor.likeness import alike
from vitral.data.samples import Item

IDENTICAL, LOOKS_THE_SAME = "the same file", "looks the same"

Files = list[Item]  # whose bytes are the same
Picture = list[Files]  # all the files that look the same


def copy_findings(looks: Sequence[Look]) -> Iterator[Finding]:
    """What copies among the files give cause to say, exact ones and those that look the same."""
    repeated = pictures(looks)
    yield from _contradictions(repeated)
    yield from _leaks(repeated)
    yield from _look_alike_labels(repeated)
    yield from _duplicates(repeated)
    yield from _look_alikes(repeated)


def pictures(looks: Sequence[Look]) -> list[Picture]:
    """Every picture that two or more files show, in the order of the first."""
    files: defaultdict[bytes, Files] = defaultdict(list)
    sketches: dict[bytes, bytes] = {}
    for item, exam in looks:
        files[exam.digest].append(item)
        sketches[exam.digest] = exam.sketch
    distinct = list(files)
    values = np.frombuffer(b"".join(sketches[digest] for digest in distinct), dtype=np.uint8)
    groups = alike(values.reshape(len(distinct), -1)) if distinct else []
    grouped = set(chain.from_iterable(groups))
    groups += [[index] for index in range(len(distinct)) if index not in grouped]
    found = [[files[distinct[index]] for index in group] for group in sorted(groups)]
    return [picture for picture in found if len(picture) > 1 or len(picture[0]) > 1]


def one_each(items: Sequence[Item], field: str) -> tuple[Item, ...]:
    """The first item of every split, or of every label."""
    firsts: dict[Hashable, Item] = {}
    for item in items:
        firsts.setdefault(getattr(item, field), item)
    return tuple(firsts.values())


def _across(repeated: Sequence[Picture], field: str) -> Iterator[Example]:
    """The pictures that are in two splits, or under two labels; the very same file rather than a look-alike."""
    for picture in repeated:
        exact = next((files for files in picture if len(one_each(files, field)) > 1), None)
        items = one_each(exact or list(chain.from_iterable(picture)), field)
        if len(items) > 1:
            yield Example(items, IDENTICAL if exact else LOOKS_THE_SAME)


def _contradictions(repeated: Sequence[Picture]) -> Iterator[Finding]:
    found = tuple(_across([[files] for picture in repeated for files in picture], "label"))
    if found:
        title = f"{plural(len(found), 'file is', 'files are')} under two labels or more"
        yield Finding("error", "contradiction", title, len(found), found, "keep the one that is right")


def _leaks(repeated: Sequence[Picture]) -> Iterator[Finding]:
    """The very same file in two splits is an error; of a look-alike, such as one of a burst, a person must judge."""
    leaks = tuple(_across(repeated, "split"))
    found = tuple(example for example in leaks if example.detail == IDENTICAL)
    if found:
        title = f"{plural(len(found), 'file is', 'files are')} in two splits: accuracy will look too high"
        yield Finding("error", "leak", title, len(found), found, "keep each in one split only")
    found = tuple(example for example in leaks if example.detail == LOOKS_THE_SAME)
    if found:
        title = f"{plural(len(found), 'picture looks', 'pictures look')} the same in two splits"
        remedy = "look at them: if they are copies, accuracy will look too high"
        yield Finding("warning", "look-alike leak", title, len(found), found, remedy)


def _look_alike_labels(repeated: Sequence[Picture]) -> Iterator[Finding]:
    found = tuple(example for example in _across(repeated, "label") if example.detail == LOOKS_THE_SAME)
    if found:
        title = f"{plural(len(found), 'picture looks', 'pictures look')} the same under two labels"
        yield Finding("warning", "look-alike labels", title, len(found), found, "look at them, and keep what is right")


def _duplicates(repeated: Sequence[Picture]) -> Iterator[Finding]:
    exact = [files for picture in repeated for files in picture]
    found = tuple(Example(tuple(same), IDENTICAL) for files in exact for same in _together(files) if len(same) > 1)
    if found:
        extra = sum(len(example.items) - 1 for example in found)
        title = f"{plural(extra, 'file is an exact copy', 'files are exact copies')} within a class"
        yield Finding("warning", "duplicates", title, extra, found, "remove the copies: they count double in training")


def _look_alikes(repeated: Sequence[Picture]) -> Iterator[Finding]:
    firsts = [[same[0] for files in picture for same in _together(files)] for picture in repeated]
    found = tuple(Example(tuple(same), LOOKS_THE_SAME) for some in firsts for same in _together(some) if len(same) > 1)
    if found:
        title = f"{plural(len(found), 'picture is', 'pictures are')} there more than once, in versions that look alike"
        yield Finding("note", "look-alikes", title, len(found), found, "keep one of each, unless they are meant")


def _together(items: Sequence[Item]) -> list[Files]:
    """The items by split and label."""
    groups: defaultdict[tuple[str, int], Files] = defaultdict(list)
    for item in items:
        groups[item.split, item.label].append(item)
    return list(groups.values())
