"""A disk cache of features, keyed by what they were computed from.  N images, D width.

A file is named by its key, a hash of the weights, the preprocessing and the images. It has the hash of its features in
itself, since it is the only file of its entry and a manifest would be another: a damaged one is deleted and the
features are computed again.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitral.core.files import check_file
from vitral.core.machine import cache_folder
from vitral.core.storage import STORAGE, os_error_message
from vitral.weights.tensors import safetensors_chunks

log = logging.getLogger("vitral")
SUFFIX = ".safetensors"
STALE_SECONDS = 24 * 3600.0  # after which a temporary file was left by a killed process


class FeatureCache:
    """Stores features between evaluations. This base class stores nothing: features are computed every time."""

    def features(self, key: Callable[[], str], images: int, compute: Callable[[], Tensor]) -> Tensor:
        """The features (N, D) of this key and number of images; `compute` is called if they are not cached."""
        return compute()


@dataclass(frozen=True)
class DiskCache(FeatureCache):
    """A folder of features of limited size: the least recently used are removed first."""

    path: Path
    max_bytes: int = 4 * 2**30

    def features(self, key: Callable[[], str], images: int, compute: Callable[[], Tensor]) -> Tensor:
        name = key()
        path = self.path / f"{name}{SUFFIX}"
        features = _read(path, name, images)
        if features is not None:
            log.info(f"using cached features of {images:,} images: {path}")
            return features
        features = compute()
        self._write(path, name, features)
        return features

    def _write(self, path: Path, name: str, features: Tensor) -> None:
        """Write the features. A failure to write is logged, not raised."""
        if features.nbytes > self.max_bytes:
            log.info(f"features not cached: {features.nbytes / 1e9:,.1f} GB is more than the cache holds")
            return
        metadata = {"key": name, "sha256": _digest(features)}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            STORAGE.replace_file(path, safetensors_chunks({"vectors": features}, metadata), unique=True)
            self._make_room(path)
        except OSError as error:
            log.info(f"features not cached: {error.filename or path}: {os_error_message(error)}")

    def _make_room(self, newest: Path) -> None:
        """Remove stale temporary files, then the least recently used features, until the rest fits."""
        for draft in self.path.glob("*.tmp-*"):
            with suppress(FileNotFoundError):  # another process may have removed it
                if time.time() - draft.stat().st_mtime > STALE_SECONDS:
                    draft.unlink()
        files = []
        for path in self.path.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                files.append((path == newest, path.stat().st_mtime_ns, path.stat().st_size, path))
        used = sum(size for _, _, size, _ in files)
        for _, _, size, path in sorted(files)[:-1]:  # the newest is last, even if the clock was changed
            if used > self.max_bytes:
                path.unlink(missing_ok=True)
                used -= size


def default_cache() -> DiskCache:
    """The cache in the user's cache folder."""
    return DiskCache(cache_folder("features"))


def cache_key(parts: Iterable[str], images: Iterable[bytes]) -> str:
    """A hash of the parts and the images, in order."""
    digest = hashlib.sha256()
    for content in (*(part.encode() for part in parts), b""):
        digest.update(len(content).to_bytes(8, "little") + content)  # the length tells `ab, c` from `a, bc`
    for image in images:
        digest.update(len(image).to_bytes(8, "little"))
        digest.update(image)
    return digest.hexdigest()


def _read(path: Path, name: str, images: int) -> Tensor | None:
    """The features in a file, if it is intact and of this key."""
    try:
        check_file(path)
        with safe_open(path, framework="pt") as file:
            metadata, features = file.metadata() or {}, file.get_tensor("vectors")
        valid = features.dtype == torch.float32 and features.ndim == 2 and len(features) == images
        if valid and metadata.get("key") == name and metadata.get("sha256") == _digest(features):
            os.utime(path)  # marks it as recently used
            return features
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError):
        pass
    with suppress(OSError):
        path.unlink()
    log.info(f"computing features again: {path} is damaged")
    return None


def _digest(features: Tensor) -> str:
    return hashlib.sha256(features.contiguous().numpy().data).hexdigest()
