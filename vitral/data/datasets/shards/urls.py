"""Paths and URLs of tar shards: expansion of `set/train-{000..127}.tar` and `s3://bucket/set/*.tar`, and reading.

Local files are read directly, URLs through fsspec.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from itertools import product
from typing import Any, BinaryIO

from vitral.core.errors import ConfigError, DataError, did_you_mean
from vitral.data.datasets.files import is_image, unreadable
from vitral.data.datasets.shards.index import DRAFT, INDEX
from vitral.data.samples import format_names

# The packages that a protocol needs; fsspec names the rest.
PACKAGES = {
    "abfs": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "aiohttp requests",
    "https": "aiohttp requests",
    "s3": "s3fs",
    "s3a": "s3fs",
}


def is_remote(path: str) -> bool:
    return "://" in path


def check_protocol(path: str) -> None:
    """Refuse a URL whose protocol cannot be read here."""
    if is_remote(path):
        _system(path)


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """The file, open for reading and seeking."""
    with _wrap_errors(path):
        if is_remote(path):
            system, name = _system(path)
            with system.open(name, "rb") as file:
                yield file
        else:
            with open(path, "rb") as file:
                yield file


def read_range(path: str, start: int, length: int) -> bytes:
    """A byte range of a file: one read of a local file, one request for a remote one."""
    with _wrap_errors(path):
        if is_remote(path):
            system, name = _system(path)
            data: bytes = system.cat_file(name, start=start, end=start + length)
        else:
            with open(path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, start)
    if len(data) != length:
        raise DataError(
            f"expected {length} bytes from byte {start} on, found {len(data)}",
            code="data.changed",
            where=path,
            hint="it changed after it was opened, or its server gives no parts of files; fetch it again",
        )
    return data


def read_whole(path: str) -> bytes:
    with open_file(path) as file:
        return file.read()


def exists(path: str) -> bool:
    with _wrap_errors(path):
        if not is_remote(path):
            return os.path.isfile(path)
        system, name = _system(path)
        return bool(system.exists(name))


def file_sizes(folder: str) -> dict[str, int]:
    """The bytes of each file in a folder, by name; what begins with a dot is not looked at."""
    with _wrap_errors(folder):
        if is_remote(folder):
            system, name = _system(folder)
            found = [(entry["name"], entry["size"]) for entry in system.ls(name, detail=True) if _is_file(entry)]
        else:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]
    named = {name.rsplit("/", 1)[-1]: size for name, size in found}
    return {name: size for name, size in sorted(named.items()) if not name.startswith(".")}


def glob_paths(pattern: str) -> list[str]:
    """The paths that a pattern with `*`, `?` or `[` stands for, in the order of names."""
    with _wrap_errors(pattern):
        if not is_remote(pattern):
            return sorted(glob(pattern))
        system, name = _system(pattern)
        return sorted(system.unstrip_protocol(path) for path in system.glob(name))


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the address as that system calls it."""
    import fsspec.core  # only remote data waits for it

    protocol = address.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(address)
    except ImportError as error:
        hint = f"pip install {PACKAGES[protocol]}" if protocol in PACKAGES else str(error)
        raise ConfigError(
            f"reading {protocol}:// needs another package", code="config.missing_package", where=address, hint=hint
        ) from None
    except ValueError:
        hint = did_you_mean(protocol, fsspec.available_protocols()) or "fetch the files and give their folder"
        raise ConfigError(
            f"no way is known to read {protocol}://", code="config.unknown_name", where=address, hint=hint
        ) from None


def _is_file(entry: dict[str, Any]) -> bool:
    return entry["type"] == "file"


@contextmanager
def _wrap_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from None


BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
MAX_EXPANDED = 1_000_000  # shards that an address may stand for
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def names_shards(path: str) -> bool:
    """Whether the path is a URL, a tar, a pattern of tars, or a folder of tars or of a pack."""
    if is_remote(path):
        return True
    if os.path.isdir(path):
        return _holds_shards(path)
    return is_tar(path) and (os.path.exists(path) or is_pattern(path))


def is_pattern(path: str) -> bool:
    return bool(BRACES.search(path)) or is_glob(path)


def list_tars(address: str) -> list[str]:
    """The tar files that a path, a pattern or a URL stands for, sorted, without repeats."""
    found: set[str] = set()
    literal = not is_remote(address) and os.path.exists(address)
    for path in [address] if literal else expand_braces(address):
        if literal or not is_glob(path):
            found.add(path)
            continue
        matched = glob_paths(path)
        if not matched:
            raise DataError(
                "no file has a name like this",
                code="data.not_found",
                where=path,
                hint="correct the pattern",
            )
        found.update(matched)
    missing = sorted(path for path in found if not is_remote(path) and not os.path.isfile(path))
    if missing:
        message = f"{len(missing)} of {len(found)} shards are missing: {format_names(missing)}"
        raise DataError(
            message, code="data.missing_file", where=address, hint="put them back, or write the range that is there"
        )
    return sorted(found)


def expand_braces(address: str) -> list[str]:
    """Every name that the braces of an address stand for: `a-{08..10,x}` is a-08, a-09, a-10 and a-x."""
    parts = BRACES.split(address)  # text and the inside of braces in turn
    choices = [_choices(part, address) if place % 2 else [part] for place, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MAX_EXPANDED:
        raise DataError(
            f"stands for {count:,} names", code="data.bad_pattern", where=address, hint="write a smaller range"
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
        if not first <= last < first + MAX_EXPANDED:
            example = "write it from the lower to the higher number, such as {000..127}"
            raise DataError(
                f"the range {part} cannot be followed", code="data.bad_pattern", where=address, hint=example
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
