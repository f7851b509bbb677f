"""Vectors that are kept on the disk by the content they were made from.  N images, D width.

A file is called by its key, a hash of all that decides the vectors. It is written under another name first, so that
there is all of it or none, and has the hash of its own vectors in it: what is damaged, or is not ours, is made again.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitral.core.machine import cache_folder
from vitral.core.storage import Storage, os_error_message
from vitral.weights.tensors import safetensors_chunks

log = logging.getLogger("vitral")
MAX_BYTES = 4 * 2**30  # bytes
ENDING = ".safetensors"
ABANDONED = 24 * 3600.0  # seconds after which nobody writes to a draft any more
DISK = Storage()


class FeatureCache(Protocol):
    """Where vectors may be had without making them."""

    def features(self, key: Callable[[], str], images: int, make: Callable[[], Tensor]) -> Tensor:
        """The vectors (N, D) of so many images that have this key, made only if they are not at hand."""
        ...


class NoCache:
    """Vectors are made whenever they are asked for."""

    def features(self, key: Callable[[], str], images: int, make: Callable[[], Tensor]) -> Tensor:
        return make()


@dataclass(frozen=True)
class DiskCache:
    """A folder of vectors that holds so many bytes at the most: what was not used for longest makes room."""

    path: Path
    max_bytes: int = MAX_BYTES

    def features(self, key: Callable[[], str], images: int, make: Callable[[], Tensor]) -> Tensor:
        name = key()
        path = self.path / f"{name}{ENDING}"
        found = _read(path, name, images)
        if found is not None:
            log.info(f"the features of {images:,} images were made before: {path}")
            return found
        found = make()
        self._keep(path, name, found)
        return found

    def _keep(self, path: Path, name: str, vectors: Tensor) -> None:
        """Write the vectors. They are worth having without a cache too, so a disk that refuses is no error."""
        if vectors.nbytes > self.max_bytes:
            log.info(f"the features take {vectors.nbytes / 1e9:,.1f} GB, too much to be kept for the next time")
            return
        metadata = {"key": name, "sha256": _digest(vectors)}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            DISK.replace_file(path, safetensors_chunks({"vectors": vectors}, metadata), unique=True)
            self._make_room(path)
        except OSError as error:
            log.info(
                f"the features are not kept for the next time: {error.filename or path}: {os_error_message(error)}"
            )

    def _make_room(self, newest: Path) -> None:
        """Remove what a killed process left, then what was used least recently, until the rest fits."""
        for draft in self.path.glob("*.tmp-*"):
            with suppress(FileNotFoundError):  # other processes tidy up as well
                if time.time() - draft.stat().st_mtime > ABANDONED:
                    draft.unlink()
        files = []
        for path in self.path.glob(f"*{ENDING}"):
            with suppress(FileNotFoundError):
                files.append((path == newest, path.stat().st_mtime_ns, path.stat().st_size, path))
        used = sum(size for _, _, size, _ in files)
        for _, _, size, path in sorted(files)[:-1]:  # the newest is last, whatever the clock says
            if used > self.max_bytes:
                path.unlink(missing_ok=True)
                used -= size


def default_cache() -> DiskCache:
    """The user's."""
    return DiskCache(cache_folder("features"))


def cache_key(parts: Iterable[str], images: Iterable[bytes]) -> str:
    """A hash of the parts and of the images, in their order."""
    found = hashlib.sha256()
    for content in (*(part.encode() for part in parts), b""):
        found.update(len(content).to_bytes(8, "little") + content)  # or `ab, c` would be `a, bc`
    for image in images:
        found.update(len(image).to_bytes(8, "little"))
        found.update(image)
    return found.hexdigest()


def _read(path: Path, name: str, images: int) -> Tensor | None:
    """The vectors in a file, if it has those of this key and every bit is as it was written."""
    try:
        with safe_open(path, framework="pt") as file:
            notes, vectors = file.metadata() or {}, file.get_tensor("vectors")
        whole = vectors.dtype == torch.float32 and vectors.ndim == 2 and len(vectors) == images
        if whole and notes.get("key") == name and notes.get("sha256") == _digest(vectors):
            os.utime(path)  # what is used last is removed last
            return vectors
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError):
        pass
    with suppress(OSError):
        path.unlink()
    log.info(f"the features in {path} were damaged and are made again")
    return None


def _digest(vectors: Tensor) -> str:
    return hashlib.sha256(vectors.contiguous().numpy().data).hexdigest()
