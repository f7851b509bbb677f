"""Reading a path of this machine or an address such as `s3://bucket/set/train-000.tar` in the same way.

Nothing here stays open or is remembered: a worker process may be forked or started anew at any time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from typing import Any, BinaryIO

from vitral.data.sources.files import unreadable
from vitral.errors import ConfigError, DataError, nearest

# What brings a protocol; fsspec's own words name the rest.
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
    """Refuse an address that cannot be read here, by the name that the user gave it."""
    if is_remote(path):
        _system(path)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file, open for reading and seeking."""
    with _refusing(path):
        if is_remote(path):
            system, name = _system(path)
            with system.open(name, "rb") as file:
                yield file
        else:
            with open(path, "rb") as file:
                yield file


def read_range(path: str, start: int, length: int) -> bytes:
    """So many bytes of a file and no others: one read of a local file, one request to a remote one."""
    with _refusing(path):
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
            remedy="it changed after it was opened, or its server gives no parts of files; fetch it again",
        )
    return data


def read_whole(path: str) -> bytes:
    with opened(path) as file:
        return file.read()


def exists(path: str) -> bool:
    with _refusing(path):
        if not is_remote(path):
            return os.path.isfile(path)
        system, name = _system(path)
        return bool(system.exists(name))


def sizes(folder: str) -> dict[str, int]:
    """The bytes of each file in a folder, by name; what begins with a dot is not looked at."""
    with _refusing(folder):
        if is_remote(folder):
            system, name = _system(folder)
            found = [(entry["name"], entry["size"]) for entry in system.ls(name, detail=True) if _is_file(entry)]
        else:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]
    named = {name.rsplit("/", 1)[-1]: size for name, size in found}
    return {name: size for name, size in sorted(named.items()) if not name.startswith(".")}


def matches(pattern: str) -> list[str]:
    """The paths that a pattern with `*`, `?` or `[` stands for, in the order of names."""
    with _refusing(pattern):
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
        remedy = f"pip install {PACKAGES[protocol]}" if protocol in PACKAGES else str(error)
        raise ConfigError(
            f"reading {protocol}:// needs another package", code="config.missing_package", where=address, remedy=remedy
        ) from None
    except ValueError:
        remedy = nearest(protocol, fsspec.available_protocols()) or "fetch the files and give their folder"
        raise ConfigError(
            f"no way is known to read {protocol}://", code="config.unknown_name", where=address, remedy=remedy
        ) from None


def _is_file(entry: dict[str, Any]) -> bool:
    return entry["type"] == "file"


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from None
