"""The contents of a dataset as one hash, which is computed beside the training.

Files are hashed by a process of low priority, and only once: see `vitral/data/hash_files.py`. Tar shards, Parquet and
Arrow files are hashed whole, images in memory one by one. The hash depends on names and bytes, not on where they are.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from vitral.core.errors import DataError
from vitral.core.machine import cache_folder
from vitral.data.datasets.arrays import ArrayStore
from vitral.data.datasets.files import FileStore
from vitral.data.datasets.huggingface import TableStore
from vitral.data.datasets.shards import ShardStore
from vitral.data.datasets.urls import is_remote
from vitral.data.hash_files import DIGEST_BYTES, HashCache, hash_files
from vitral.data.samples import Samples, Store

CACHE_FILE = "hashes.sqlite"
FEW_FILES, FEW_BYTES = 200, 2**25  # which are hashed at once


class ContentFile(NamedTuple):
    """A file that has contents of a dataset, and its name in the dataset."""

    name: str
    path: str


def has_files(store: Store) -> bool:
    """Whether the images are in files of this machine: not in memory, behind an address or a user's own."""
    if isinstance(store, ShardStore):
        return not any(map(is_remote, store.paths))
    return isinstance(store, FileStore | TableStore)


def content_files(samples: Samples) -> list[ContentFile]:
    """The files with the images of a dataset that has files."""
    store = samples.store
    if isinstance(store, FileStore):
        return [ContentFile(item.name, store.address(item.name)) for item in samples.items]
    if isinstance(store, TableStore):
        names = dict.fromkeys(item.name.rpartition("#")[0] for item in samples.items)
        return [ContentFile(name, os.path.join(store.root, name)) for name in names]
    assert isinstance(store, ShardStore)
    return [ContentFile(os.path.basename(path), path) for path in store.paths]


class ContentHash:
    """Computes the hash of the contents of a dataset in the background."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.is_known = has_files(samples.store) or isinstance(samples.store, ArrayStore)  # whether there is a hash
        self._process: subprocess.Popen[bytes] | None = None
        self._paths: IO[bytes] | None = None
        self._hashes: IO[bytes] | None = None
        self._cache = cache_folder("contents") / CACHE_FILE

    @cached_property
    def files(self) -> list[ContentFile] | None:
        """The files to hash; None if the images are in memory. Listing a million takes seconds, so not at the start."""
        return content_files(self.samples) if has_files(self.samples.store) else None

    @cached_property
    def _absolute(self) -> list[str]:
        here = os.path.abspath(".")
        return [os.path.join(here, file.path) for file in self.files or ()]

    @cached_property
    def _is_small(self) -> bool:
        """Whether the files are hashed sooner than a process starts."""
        return len(self._absolute) <= FEW_FILES and sum(map(_size, self._absolute)) <= FEW_BYTES

    def start(self) -> None:
        """Begin to hash the files."""
        if self.files is None or self._is_small:
            return
        self._paths, self._hashes = TemporaryFile(), TemporaryFile()  # noqa: SIM115, closed by `close`
        self._paths.write(b"".join(os.fsencode(path) + b"\0" for path in self._absolute))
        self._paths.seek(0)
        line = [sys.executable, "-P", "-m", "vitral.data.hash_files", str(self._cache)]
        # A session of its own: an interrupt of the terminal is for the run, which ends this process itself.
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            line,
            stdin=self._paths,
            stdout=self._hashes,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )

    def poll(self) -> str:
        """The hash, or an empty string if it is not complete; the first call begins to compute it."""
        if self._process is None:
            self.start()
        if self._process is not None and self._process.poll() is None:
            return ""
        return self.wait()

    def wait(self) -> str:
        """The hash; DataError if a file cannot be read."""
        if self.files is None:
            return self._hash_images() if self.is_known else ""
        if self._is_small:
            with closing(HashCache(self._cache)) as cache:
                return combine_hashes(self.files, list(hash_files(map(os.fsencode, self._absolute), cache)))
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._hashes is not None
        code = self._process.wait()
        self._hashes.seek(0)
        hashes = self._hashes.read().decode().split("\n")[:-1]
        self.close()
        if code or len(hashes) != len(self.files):
            raise DataError("the files could not be hashed", code="data.unreadable", where=self.samples.where)
        return combine_hashes(self.files, hashes)

    def _hash_images(self) -> str:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for item in self.samples.items:
            digest.update(os.fsencode(item.name) + b"\0" + self.samples.store.read(item.name))
        return digest.hexdigest()

    def close(self) -> None:
        """End the process, whether it is done or not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for file in (self._paths, self._hashes):
            if file is not None:
                file.close()
        self._paths = self._hashes = None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def combine_hashes(files: Sequence[ContentFile], hashes: Sequence[str]) -> str:
    """One hash of all names and hashes, in this order."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file, found in zip(files, hashes, strict=True):
        if not found:
            hint = "check its permissions, or restore it"
            raise DataError("cannot be read", code="data.unreadable", where=file.path, hint=hint)
        digest.update(os.fsencode(file.name) + b"\0" + found.encode() + b"\n")
    return digest.hexdigest()
