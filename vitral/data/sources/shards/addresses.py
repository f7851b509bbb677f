"""From what a user writes (`set/train-{000..127}.tar`, `s3://bucket/set/*.tar`) to the tar files it stands for."""

import os
import re
from itertools import product

from vitral.data.sources.files import is_image
from vitral.data.sources.labels import listed
from vitral.data.sources.shards.index import DRAFT, INDEX
from vitral.data.sources.shards.places import is_remote, matches
from vitral.errors import DataError

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
MOST = 1_000_000  # shards that an address may stand for
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def names_shards(path: str) -> bool:
    """Whether the path is for this kind of source: a tar, a pattern of tars, or a folder of tars or of a pack."""
    if is_remote(path):
        return True
    if os.path.isdir(path):
        return _holds_shards(path)
    return is_tar(path) and (os.path.exists(path) or is_pattern(path))


def is_pattern(path: str) -> bool:
    return bool(BRACES.search(path)) or is_glob(path)


def tars(address: str) -> list[str]:
    """The tar files of an address, in the order of names, each once."""
    found: set[str] = set()
    literal = not is_remote(address) and os.path.exists(address)
    for path in [address] if literal else expand(address):
        if literal or not is_glob(path):
            found.add(path)
            continue
        matched = matches(path)
        if not matched:
            raise DataError(
                "no file has a name like this",
                code="data.not_found",
                where=path,
                remedy="look what is there, mend the pattern",
            )
        found.update(matched)
    missing = sorted(path for path in found if not is_remote(path) and not os.path.isfile(path))
    if missing:
        what = f"{len(missing)} of {len(found)} shards are missing: {listed(missing)}"
        raise DataError(
            what, code="data.missing_file", where=address, remedy="put them back, or write the range that is there"
        )
    return sorted(found)


def expand(address: str) -> list[str]:
    """Every name that the braces of an address stand for: `a-{08..10,x}` is a-08, a-09, a-10 and a-x."""
    parts = BRACES.split(address)  # text and the inside of braces in turn
    choices = [_choices(part, address) if place % 2 else [part] for place, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST:
        raise DataError(
            f"stands for {count:,} names", code="data.bad_pattern", where=address, remedy="write a smaller range"
        )
    return ["".join(words) for words in product(*choices)]


def _choices(inside: str, address: str) -> list[str]:
    """What stands between commas, a range being all of its numbers, as wide as its first."""
    found: list[str] = []
    for part in inside.split(","):
        match = RANGE.fullmatch(part)
        if not match:
            found.append(part)
            continue
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + MOST:
            example = "write it from the lower to the higher number, such as {000..127}"
            raise DataError(
                f"the range {part} cannot be followed", code="data.bad_pattern", where=address, remedy=example
            )
        found += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return found


def _holds_shards(folder: str) -> bool:
    """Whether a folder is a pack, or has tars and neither folders nor images."""
    with os.scandir(folder) as entries:
        seen = [entry for entry in entries if not entry.name.startswith(".")]
    if any(entry.name in (INDEX, DRAFT) for entry in seen):
        return True
    beside = any(entry.is_dir() or is_image(entry.name) for entry in seen)
    return not beside and any(is_tar(entry.name) for entry in seen)


def is_tar(path: str) -> bool:
    """Whether the name ends as a tar's does; a compressed one is found out, and refused, when it is read."""
    return path.lower().endswith((".tar", *COMPRESSED))


def is_glob(path: str) -> bool:
    return any(letter in path for letter in "*?[")
