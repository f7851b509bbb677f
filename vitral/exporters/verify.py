"""Verification of an export: its outputs on real images are compared with the model's.

B, N images, H x W pixels, C channels, K outputs.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat
from math import ceil, inf
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.core.config import Size
from vitral.core.errors import VitralError
from vitral.data.decoding.decode import FULL_SIZE, decode
from vitral.data.samples import Item, Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import crop_and_resize, resize
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch, run_in_batches
from vitral.inference.exported import Accuracy, Certificate, Comparison
from vitral.weights.load import LoadedModel

log = logging.getLogger("vitral")
CHUNK = 32  # images read at a time
FIRST_CHUNK = 8  # images of each input size at first, so that the first few cover all sizes
BATCH_SIZES = (1, 3, CHUNK)  # that a dynamic batch is verified with
ROUNDING = 1e-9
SMALL_BATCH_IMAGES = 33  # images verified in batch sizes other than the largest


class ExportImages(NamedTuple):
    """Images for verification and for calibration; no image is in both."""

    description: str  # `test images of photos/`
    samples: Samples
    verification: tuple[Item, ...]
    labels: tuple[int, ...]  # of the verification images; empty where the data has other classes than the model
    calibration: tuple[Item, ...]


class VerificationBatch(NamedTuple):
    """Images as the export takes them, and as its model takes them."""

    inputs: PixelBatch  # (B, H, W, C)
    model_pixels: PixelBatch  # (B, H, W, C), of the model's image size


def sample_evenly(items: Sequence[Item], most: int) -> tuple[Item, ...]:
    """At most `most` items, evenly spaced."""
    count = min(most, len(items))
    return tuple(items[index * len(items) // count] for index in range(count))


def load_pixels(samples: Samples, items: Sequence[Item], preprocessing: Preprocessing) -> PixelBatch:
    """Preprocessed images (B, H, W, C)."""
    return np.stack([preprocessing.pixels(samples.read(item), samples.store.address(item.name)) for item in items])


def mix_channels(pixels: PixelBatch) -> PixelBatch:
    """Images (B, H, W, C) that each take their channels from different images."""
    return np.stack([np.roll(pixels[..., channel], channel, axis=0) for channel in range(pixels.shape[-1])], axis=-1)


@dataclass(frozen=True)
class VerificationImages:
    """The verification images in batches; iterating again gives the same batches.

    Gray images cannot detect swapped color channels. Where all are gray and the model takes RGB, some are repeated with
    channels of different images.
    """

    source: ExportImages
    preprocessing: Preprocessing
    sizes: tuple[Size, ...]  # of the inputs, batch by batch in turn; empty where the export takes preprocessed pixels

    def __iter__(self) -> Iterator[VerificationBatch]:
        for number, items in enumerate(self._chunks()):
            size = self.sizes[number % len(self.sizes)] if self.sizes else self.preprocessing.image_size
            yield self._batch(self._inputs(items, size), size)
        if self.repeats_gray:
            size = self.sizes[0] if self.sizes else self.preprocessing.image_size
            yield self._batch(mix_channels(self._inputs(self.source.verification[:CHUNK], size)), size)

    @cached_property
    def repeats_gray(self) -> bool:
        """Whether some images are repeated with mixed channels."""
        some = self._inputs(self.source.verification[:CHUNK], self.preprocessing.image_size)
        return some.shape[-1] > 1 and len(some) > 1 and bool((some == some[..., :1]).all())

    def describe(self) -> str:
        """The number and origin of the images."""
        count = len(self.source.verification)
        repeated = f", {min(CHUNK, count)} of them repeated with mixed channels" if self.repeats_gray else ""
        return f"{count:,} {self.source.description}{repeated}"

    def _chunks(self) -> Iterator[Sequence[Item]]:
        """The items of each batch; with several input sizes, the first batch of each is small."""
        items, count = iter(self.source.verification), len(self.sizes)
        first = min(FIRST_CHUNK, ceil(len(self.source.verification) / count)) if count > 1 else CHUNK
        lengths = chain(repeat(first, count), repeat(CHUNK))
        while chunk := tuple(islice(items, next(lengths))):
            yield chunk

    def _inputs(self, items: Sequence[Item], size: Size) -> PixelBatch:
        """Images as the export takes them: preprocessed, or whole images resized to this size."""
        if not self.sizes:
            return load_pixels(self.source.samples, items, self.preprocessing)  # (B, H, W, C)
        samples, decoding = self.source.samples, self.preprocessing.decoding
        whole = (decode(samples.read(item), samples.store.address(item.name), decoding, FULL_SIZE) for item in items)
        return np.stack([resize(each, size, self.preprocessing.crop.filter) for each in whole])

    def _batch(self, inputs: PixelBatch, size: Size) -> VerificationBatch:
        if not self.sizes:
            return VerificationBatch(inputs, inputs)
        plan = self.preprocessing.crop.plan(size, self.preprocessing.image_size)
        return VerificationBatch(inputs, np.stack([crop_and_resize(each, size, plan) for each in inputs]))


class Tolerance(NamedTuple):
    """The largest allowed deviation of an export from its model."""

    precision: str
    difference: float  # of any output
    agreement: float  # share of images with the same top-1
    loss: float  # of accuracy


FLOAT32 = Tolerance("float32", difference=1e-4, agreement=1.0, loss=0.0)
INT8 = Tolerance("int8", difference=inf, agreement=0.99, loss=0.005)


@dataclass(frozen=True)
class ReferenceEngine:
    """The model itself as an engine, without any optimization."""

    loaded: LoadedModel

    @torch.no_grad()
    def run(self, pixels: PixelBatch) -> FloatArray:
        model, bundle = self.loaded
        images = bundle.preprocessing.normalize.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2))  # (B, C, H, W)
        return (model(images) if bundle.task == "classify" else model.forward_pooled(images)).numpy()  # (B, K)


class ReferenceOutputs(NamedTuple):
    """The outputs of the model."""

    outputs: FloatArray  # (N, K)
    labels: NDArray[np.int64]  # (N,), or (0,) where they are unknown
    is_classification: bool


def reference_outputs(
    loaded: LoadedModel, batches: Iterable[VerificationBatch], labels: Sequence[int]
) -> ReferenceOutputs:
    """The outputs of the model; VitralError where they are the same for all images, which verifies nothing."""
    engine = ReferenceEngine(loaded)
    log.info("running the model and the export on the verification images")
    outputs = np.concatenate([engine.run(batch.model_pixels) for batch in batches])
    if len(outputs) > 1 and np.ptp(outputs, axis=0).max() == 0:
        message = "the model has the same output for every image, so an export cannot be verified"
        raise VitralError(message, code="export.constant_output", hint="train it first, or use other images: --data")
    classes = loaded.bundle.task == "classify"
    return ReferenceOutputs(outputs, np.array(labels if classes else (), dtype=np.int64), classes)


def verify(
    export: Engine,
    reference: ReferenceOutputs,
    batches: Iterable[VerificationBatch],
    tolerance: Tolerance,
    images: str,
    batch_sizes: Sequence[int],
) -> Certificate:
    """Compare an export with the model: all images in the largest batch size, a few in the others."""
    chunks: dict[int, list[FloatArray]] = {size: [] for size in batch_sizes}
    done = dict.fromkeys(batch_sizes, 0)
    largest = max(batch_sizes)
    for batch in batches:
        for size in batch_sizes:
            count = len(batch.inputs) if size == largest else SMALL_BATCH_IMAGES - done[size]
            if count:
                chunks[size].append(run_in_batches(export, batch.inputs[:count], size))
                done[size] += len(chunks[size][-1])
    outputs = {size: np.concatenate(each) for size, each in chunks.items()}
    accuracy = None
    if count := len(reference.labels):  # images with mixed channels come after these and have no label
        both = (each[:count].argmax(axis=1) == reference.labels for each in (reference.outputs, outputs[largest]))
        model, export_ = (float(same.mean()) for same in both)
        accuracy = Accuracy(model=model, export=export_)
    return Certificate(
        bound=describe_tolerance(tolerance, reference.is_classification),
        images=images,
        comparisons=tuple(compare(each, reference, size) for size, each in outputs.items()),
        accuracy=accuracy,
    )


def compare(outputs: FloatArray, reference: ReferenceOutputs, batch: int) -> Comparison:
    """Compare outputs for the first images with the model's."""
    expected = reference.outputs[: len(outputs)]
    same = float((outputs.argmax(axis=1) == expected.argmax(axis=1)).mean())
    difference = float(np.abs(outputs - expected).max())
    if not np.isfinite(difference):
        hint = "use float32, or weights from before training diverged; nothing was written"
        raise VitralError("the export has outputs that are not finite", code="export.not_finite", hint=hint)
    agreement = same if reference.is_classification else None
    return Comparison(batch=batch, images=len(outputs), difference=difference, agreement=agreement)


def find_violations(certificate: Certificate, tolerance: Tolerance) -> list[str]:
    """The ways in which an export exceeds the tolerance, one sentence each."""
    accuracy, largest = certificate.accuracy, max(each.batch for each in certificate.comparisons)
    violations = []
    if certificate.difference > tolerance.difference:
        violations.append(f"outputs differ by {certificate.difference:.1e}, allowed is {tolerance.difference:.0e}")
    for each in certificate.comparisons:
        allowed = (1 - tolerance.agreement) * each.images
        # The smaller batch sizes are verified on few images: one of them may always differ.
        if each.changed > (allowed + ROUNDING if each.batch == largest else ceil(allowed)):
            violations.append(
                f"{each.agreement:.2%} of {each.images} images have the same top-1 in batches of {each.batch}, "
                f"fewer than the required {tolerance.agreement:.0%}"
            )
    if accuracy is not None and accuracy.model - accuracy.export > tolerance.loss + ROUNDING:
        lost = 100 * (accuracy.model - accuracy.export)
        violations.append(f"accuracy drops by {lost:.2f} points, allowed is {100 * tolerance.loss:g}")
    return violations


def describe_tolerance(tolerance: Tolerance, classes: bool) -> str:
    """The tolerance as a certificate states it."""
    parts = [] if tolerance.difference == inf else [f"outputs within {tolerance.difference:.0e}"]
    if classes:
        parts.append(f"the same top-1 for {tolerance.agreement:.0%}")
        parts.append(f"at most {100 * tolerance.loss:g} points of accuracy lost")
    return f"{tolerance.precision}: {', '.join(parts)}"
