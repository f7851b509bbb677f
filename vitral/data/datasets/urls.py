"""Paths and URLs of tar shards: expansion of `set/train-{000..127}.tar` and `s3://bucket/set/*.tar`, and reading.

Local files are read directly, URLs through fsspec.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from itertools import product
from math import prod
from typing import Any, BinaryIO

from vitral.core import files
from vitral.core.errors import ConfigError, DataError, did_you_mean
from vitral.data.datasets.files import unreadable
from vitral.data.samples import format_names

# The packages that a protocol needs; for others, the hint is the message of fsspec.
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
            with files.open_file(path) as file:
                yield file


def read_range(path: str, start: int, length: int) -> bytes:
    """A byte range of a file: one read of a local file, one request for a remote one."""
    if length > files.IMAGE_BYTES:
        message = f"{length:,} bytes at offset {start}, the limit of an image is {files.IMAGE_BYTES:,}"
        raise DataError(message, code="data.file_too_large", where=path, hint="split it, or remove it")
    with _wrap_errors(path):
        if is_remote(path):
            system, name = _system(path)
            data: bytes = system.cat_file(name, start=start, end=start + length)
        else:
            with files.open_file(path) as file:
                data = os.pread(file.fileno(), length, start)
    if len(data) != length:
        hint = "it changed after it was opened, or its server does not support range requests; download it again"
        message = f"expected {length} bytes at offset {start}, found {len(data)}"
        raise DataError(message, code="data.changed", where=path, hint=hint)
    return data


def read_whole(path: str, max_bytes: int = files.DOCUMENT_BYTES) -> bytes:
    """The content of a document: an index, a list of classes."""
    with open_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        message = f"more than {max_bytes:,} bytes"
        raise DataError(message, code="data.file_too_large", where=path, hint="split it, or remove it")
    return content


def exists(path: str) -> bool:
    with _wrap_errors(path):
        if not is_remote(path):
            return os.path.isfile(path)
        system, name = _system(path)
        return bool(system.exists(name))


def file_sizes(folder: str) -> dict[str, int]:
    """The bytes of each file in a folder, by name; hidden files are skipped."""
    with _wrap_errors(folder):
        if is_remote(folder):
            system, name = _system(folder)
            listed = system.ls(name, detail=True)
            found = {os.path.basename(each["name"]): each["size"] for each in listed if each["type"] == "file"}
        else:
            with os.scandir(folder) as entries:
                found = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    return {name: size for name, size in sorted(found.items()) if not name.startswith(".")}


def glob_paths(pattern: str) -> list[str]:
    """The paths that match a pattern with `*`, `?` or `[`, sorted."""
    with _wrap_errors(pattern):
        if not is_remote(pattern):
            return sorted(glob(pattern))
        system, name = _system(pattern)
        return sorted(system.unstrip_protocol(path) for path in system.glob(name))


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)


def _system(address: str) -> tuple[Any, str]:
    """The fsspec file system of an address, and the path in it."""
    import fsspec.core  # imported late: only remote data needs it

    protocol = address.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(address)
    except ImportError as error:
        message, code = f"reading {protocol}:// needs another package", "config.missing_package"
        hint = f"pip install {PACKAGES[protocol]}" if protocol in PACKAGES else str(error)
    except ValueError:
        message, code = f"unknown protocol {protocol}://", "config.unknown_name"
        hint = did_you_mean(protocol, fsspec.available_protocols()) or "download the files and give their folder"
    raise ConfigError(message, code=code, where=address, hint=hint)


@contextmanager
def _wrap_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from None


BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
MAX_EXPANDED = 1_000_000  # names that the braces of an address may expand to
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def is_tar(path: str) -> bool:
    """Whether the name ends like a tar's; a compressed one is refused when it is read."""
    return path.lower().endswith(TAR_SUFFIXES)


def is_glob(path: str) -> bool:
    return any(letter in path for letter in "*?[")


def is_pattern(path: str) -> bool:
    return bool(BRACES.search(path)) or is_glob(path)


def list_tars(address: str) -> list[str]:
    """The tar files of a path, a pattern or a URL, sorted, without repeats."""
    found: set[str] = set()
    literal = not is_remote(address) and os.path.exists(address)
    for path in [address] if literal else expand_braces(address):
        matched = [path] if literal or not is_glob(path) else glob_paths(path)
        if not matched:
            raise DataError("no file matches", code="data.not_found", where=path, hint="correct the pattern")
        found.update(matched)
    missing = sorted(path for path in found if not is_remote(path) and not os.path.isfile(path))
    if missing:
        message = f"{len(missing)} of {len(found)} shards are missing: {format_names(missing)}"
        hint = "put them back, or give the range that exists"
        raise DataError(message, code="data.missing_file", where=address, hint=hint)
    return sorted(found)


def expand_braces(address: str) -> list[str]:
    """The expansion of the braces of an address: `a-{08..10,x}` is a-08, a-09, a-10 and a-x."""
    parts = BRACES.split(address)  # text and the inside of braces in turn
    choices = [_choices(part, address) if place % 2 else [part] for place, part in enumerate(parts)]
    count = prod(map(len, choices))
    if count > MAX_EXPANDED:
        hint = "give a smaller range"
        raise DataError(f"expands to {count:,} names", code="data.bad_pattern", where=address, hint=hint)
    return ["".join(words) for words in product(*choices)]


def _choices(inside: str, address: str) -> list[str]:
    """The alternatives between commas; a range gives its numbers, padded to the width of the first."""
    found: list[str] = []
    for part in inside.split(","):
        match = RANGE.fullmatch(part)
        if not match:
            found.append(part)
            continue
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + MAX_EXPANDED:
            hint = "write it from the lower to the higher number, for example {000..127}"
            raise DataError(f"invalid range {part}", code="data.bad_pattern", where=address, hint=hint)
        found += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return found
