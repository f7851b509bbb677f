"""A collection of images without labels, and the features of each.  N images, D width.

Features are computed and cached in blocks, so that a collection that is interrupted goes on where it was, and one that
grew at its end computes what is new.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral import __version__
from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.core.machine import keep_freed_memory
from vitral.data.thumbnails import THUMBNAIL_SIDE, encoded_thumbnail_url
from vitral.evaluation.feature_cache import FeatureCache, cache_key, default_cache
from vitral.evaluation.subject import Progress, no_progress
from vitral.html.page import plural
from vitral.inference.engines.engine import AUTO
from vitral.inference.exported import is_export
from vitral.inference.inputs import FileSource, ImageRef, find_images, refuse_unlisted
from vitral.inference.predictor import PredictionStream, Predictor, TrainedRun
from vitral.models.base import Model
from vitral.weights.load import LoadedModel
from vitral.weights.tensors import safetensors_chunks

log = logging.getLogger("vitral")
BLOCK = 4096  # images that are computed and cached together
ENGINE = "eager"  # not the fastest on this machine, which another call might choose differently

Inputs = str | Path | Iterable[str | Path]
ModelSource = str | Path | LoadedModel | Model | TrainedRun | Predictor


class CollectionOptions(TypedDict, total=False):
    """Keywords of `search`, `cluster` and `curate`."""

    batch_size: int
    cache: bool
    skip_bad: bool
    trust: bool
    progress: Progress


class Reading(NamedTuple):
    """How a collection is read: the values of `CollectionOptions`."""

    batch_size: int = 32
    cache: bool = True
    skip_bad: bool = False
    trust: bool = False
    progress: Progress = no_progress


class Collection(NamedTuple):
    """The images that can be read, in order, and their features."""

    images: tuple[ImageRef, ...]
    features: NDArray[np.float32]  # (N, D)
    unreadable: tuple[str, ...]  # names of the images that were skipped

    @property
    def names(self) -> list[str]:
        """The names of the images: paths, for files."""
        return [image.name for image in self.images]


def list_inputs(inputs: Inputs) -> list[ImageRef]:
    """The images of files, folders, patterns, manifests, tar shards or datasets, each once; DataError if one fails."""
    words = [inputs] if isinstance(inputs, str | Path) else inputs
    found = {image.name: image for image in refuse_unlisted(find_images(map(str, words), None))}
    return list(found.values())


def collect(predictor: Predictor, images: Sequence[ImageRef], reading: Reading) -> Collection:
    """The features of images. Unreadable ones are named; they are skipped if asked for, and an error otherwise.

    What was computed is cached before the error, so the next call has only to compare the files.
    """
    keep_freed_memory()
    store = default_cache() if reading.cache and predictor.model is not None else FeatureCache()
    parts = _key_parts(predictor) if predictor.model is not None else ()
    blocks = [images[start : start + BLOCK] for start in range(0, len(images), BLOCK)]
    rows = []
    with reading.progress("features", len(images)) as advance:
        for block in blocks:
            key = lambda block=block: cache_key(parts, map(_digest, block))  # noqa: E731
            compute = lambda block=block: extract(predictor, block, reading.batch_size, advance)  # noqa: E731
            rows.append(store.features(key, len(block), compute).numpy())
    features = np.concatenate(rows) if rows else np.zeros((0, predictor.width), np.float32)
    bad = np.asarray(np.isnan(features).any(axis=1))  # (N,)
    unreadable = [image for image, is_bad in zip(images, bad.tolist(), strict=True) if is_bad]
    _report_bad(predictor, unreadable, len(images), reading.skip_bad)
    readable = tuple(image for image, is_bad in zip(images, bad.tolist(), strict=True) if not is_bad)
    return Collection(readable, features[~bad], tuple(image.name for image in unreadable))


def extract(
    predictor: Predictor, images: Sequence[ImageRef], batch_size: int, advance: Callable[[int], None]
) -> Tensor:
    """The features (N, D), float32; a row of NaN for an image that cannot be read."""
    found = torch.full((len(images), predictor.width), float("nan"))
    place = 0
    for batch, numbers in PredictionStream(predictor, images, batch_size).outputs("features"):
        readable = [place + index for index in range(len(batch.names)) if index not in batch.failed]
        if readable:
            found[readable] = torch.from_numpy(np.ascontiguousarray(numbers))
        place += len(batch.names)
        advance(len(batch.names))
    return found


def _key_parts(predictor: Predictor) -> tuple[str, ...]:
    """What features depend on beside the images."""
    model, needs = predictor.model, predictor.bundle.preprocessing
    assert isinstance(model, Model)
    digest = hashlib.sha256()
    for piece in safetensors_chunks(model.state_dict()):
        digest.update(piece)
    return (__version__, ENGINE, digest.hexdigest(), model.config.to_json(), needs.to_json())


def _digest(image: ImageRef) -> bytes:
    """A hash of the file, or the code of the error of reading it."""
    try:
        return hashlib.sha256(image.source.read()).digest()
    except VitralError as error:
        return error.code.encode()


def _report_bad(predictor: Predictor, unreadable: Sequence[ImageRef], images: int, skip_bad: bool) -> None:
    for image in unreadable:
        try:
            predictor.bundle.preprocessing.pixels(image.source.read(), image.name)
        except VitralError as error:
            log.warning(f"{'skipped: ' if skip_bad else ''}{error if error.where else f'{image.name}: {error}'}")
    if len(unreadable) == images:
        message, hint = "none of the images can be read", "see above for each"
        raise DataError(message, code="data.bad_files", hint=hint)
    if unreadable and not skip_bad:
        message = f"{len(unreadable):,} of {plural(images, 'image')} cannot be read"
        hint = "see above for each; repair or remove them, or skip them: --skip-bad (skip_bad=True in Python)"
        raise DataError(message, code="data.bad_files", hint=hint)


def open_predictor(model: ModelSource, trust: bool = False) -> Predictor:
    """The predictor of a model; an export has its own engine."""
    if isinstance(model, Predictor):
        return model
    exported = isinstance(model, str | Path) and is_export(Path(model).expanduser())
    return Predictor(model, engine=AUTO if exported else ENGINE, trust=trust)


def describe_source(model: ModelSource) -> str:
    """The path of a model, or that it is in memory."""
    path = getattr(model, "path", model)
    return str(path) if isinstance(path, str | Path) else "a model in memory"


def thumbnail(image: ImageRef, side: int = THUMBNAIL_SIDE) -> str:
    """The image as a data URL; empty if it cannot be read any more."""
    with suppress(VitralError):
        return encoded_thumbnail_url(image.source.read(), image.name, side)
    return ""


def file_paths(images: Sequence[ImageRef]) -> list[str]:
    """The path of each image; ConfigError if one is not a file of its own, which a manifest could not name."""
    paths = []
    for image in images:
        if not isinstance(image.source, FileSource):
            message = f"{image.name} is not a file of its own, and a manifest lists files"
            hint = "give a folder or a manifest of image files"
            raise ConfigError(message, code="config.unsupported", where="DATA", hint=hint)
        paths.append(image.source.path)
    return paths
