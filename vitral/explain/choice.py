"""What a user chooses to be told: a class by its name, layers by their numbers."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from vitral.errors import ConfigError, either

NEAREST = 5  # names that are suggested


def label_of(wanted: str, classes: Sequence[str]) -> int:
    """The label of the class of this name; a number that is no name is a label by itself."""
    if not classes:
        what = "this model names no classes"
        raise ConfigError(what, code="config.unsupported", where="class", remedy="leave it out")
    labels = [label for label, name in enumerate(classes) if name == wanted]
    if len(labels) > 1:
        what = f"{len(labels)} classes are called {wanted!r}"
        remedy = f"give the number of one: {either(labels)}"
        raise ConfigError(what, code="config.ambiguous_name", where="class", remedy=remedy)
    if not labels and re.fullmatch("[0-9]+", wanted) and int(wanted) < len(classes):
        labels = [int(wanted)]
    if not labels:
        what = f"none of the {len(classes):,} classes is called {wanted!r}"
        raise ConfigError(what, code="config.unknown_name", where="class", remedy=near_names(wanted, classes))
    return labels[0]


def near_names(wanted: str, classes: Sequence[str]) -> str:
    """`did you mean 'tabby cat' or 'tiger cat'?`: names that the word is part of, or that are spelt alike."""
    word = wanted.lower()
    by_name = {name.lower(): name for name in classes}
    near = [name for name in by_name if word in name][:NEAREST]
    near = near or get_close_matches(word, by_name, n=NEAREST, cutoff=0.5)
    if near:
        return f"did you mean {either(repr(by_name[name]) for name in near)}?"
    more = f" and {len(classes) - NEAREST:,} more" if len(classes) > NEAREST else ""
    return f"there are {', '.join(map(repr, classes[:NEAREST]))}{more}"


def chosen_layers(wanted: str | Sequence[int], depth: int) -> tuple[int, ...]:
    """Numbers of layers, counted from 1, in order: of `1,6,12`, of `1-4,12`, of a list; all of them for nothing."""
    if not wanted:
        return tuple(range(1, depth + 1))
    if not depth:
        what = "this model has no layers of tokens to choose from"
        raise ConfigError(what, code="config.unsupported", where="layers", remedy="leave it out")
    found: set[int] = set()
    for part in wanted.split(",") if isinstance(wanted, str) else map(str, wanted):
        ends = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= depth:
            what = f"expected numbers from 1 to {depth}, the layers of this model, got {part.strip()!r}"
            remedy = "give them as in 1,6,12 or 1-4,12, or leave it out"
            raise ConfigError(what, code="config.out_of_range", where="layers", remedy=remedy)
        found.update(range(first, last + 1))
    return tuple(sorted(found))
