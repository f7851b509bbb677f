"""The judgment of an export: it answers real images as its model does, or it gets no name.

N images, K numbers of an answer.

Real images for an export: some that judge it, and others to calibrate with.
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
from vitral.data.decoding.decode import FULL, decode
from vitral.data.decoding.pixels import Pixels
from vitral.data.samples import Item, Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import crop_and_resize, resize
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch, run_in_batches
from vitral.inference.exported import Accuracy, Certificate, Comparison
from vitral.weights.load import LoadedModel

CHUNK = 32  # images at a time
FIRST_CHUNK = 8  # images of a size at first, where several sizes come in: any few of them meet every size


class ExportImages(NamedTuple):
    """Images, none of which serves both ends."""

    where: str  # what they are, in words: `test images of photos/`
    samples: Samples
    judging: tuple[Item, ...]
    labels: tuple[int, ...]  # of those that judge, by the model's classes; none where the data has other classes
    calibrating: tuple[Item, ...]


class VerificationBatch(NamedTuple):
    """Images as a file takes them, and as its model sees them."""

    incoming: PixelBatch  # (B, H, W, C)
    seen: PixelBatch  # (B, H, W, C) of the model's own size


def sample_evenly(items: Sequence[Item], most: int) -> tuple[Item, ...]:
    """At most so many of the items, from all over their order, so that every part of it is met."""
    count = min(most, len(items))
    return tuple(items[place * len(items) // count] for place in range(count))


def load_pixels(samples: Samples, items: Sequence[Item], needs: Preprocessing) -> PixelBatch:
    """Images as the model sees them, (B, H, W, C)."""
    return np.stack([needs.pixels(samples.read(item), samples.store.address(item.name)) for item in items])


def mix_channels(pixels: PixelBatch) -> PixelBatch:
    """Images (B, H, W, C), each channel that of another."""
    return np.stack([np.roll(pixels[..., channel], channel, axis=0) for channel in range(pixels.shape[-1])], axis=-1)


@dataclass(frozen=True)
class VerificationImages:
    """The images that judge, a portion at a time; how often it is asked for makes no difference.

    Gray images cannot tell a model that takes red for blue: where they are all gray and the model sees colors, some
    come once more, each channel that of another image.
    """

    album: ExportImages
    needs: Preprocessing
    sizes: tuple[Size, ...]  # that come in, portion by portion in turns; none where a file takes what the model sees

    def __iter__(self) -> Iterator[VerificationBatch]:
        for number, items in enumerate(self._shares()):
            size = self.sizes[number % len(self.sizes)] if self.sizes else self.needs.image_size
            yield self._portion(self._incoming(items, size), size)
        if self.mixes:
            size = self.sizes[0] if self.sizes else self.needs.image_size
            yield self._portion(mix_channels(self._incoming(self.album.verification[:CHUNK], size)), size)

    @cached_property
    def mixes(self) -> bool:
        """Whether some images come once more, in colors."""
        some = self._incoming(self.album.verification[:CHUNK], self.needs.image_size)
        return some.shape[-1] > 1 and len(some) > 1 and bool((some == some[..., :1]).all())

    def words(self) -> str:
        """How many images there are, and which."""
        more = f", {min(CHUNK, len(self.album.verification))} of them once more in mixed colors" if self.mixes else ""
        return f"{len(self.album.verification):,} {self.album.where}{more}"

    def _shares(self) -> Iterator[Sequence[Item]]:
        """The images of each portion; where there are several sizes, the first of each is small."""
        items, count = iter(self.album.verification), len(self.sizes)
        first = min(FIRST_CHUNK, ceil(len(self.album.verification) / count)) if count > 1 else CHUNK
        lengths = chain(repeat(first, count), repeat(CHUNK))
        while share := tuple(islice(items, next(lengths))):
            yield share

    def _incoming(self, items: Sequence[Item], size: Size) -> PixelBatch:
        """Images as a file takes them: as the model sees them, or pictures that have come to be of this size."""
        if not self.sizes:
            return load_pixels(self.album.samples, items, self.needs)  # (B, H, W, C)
        return np.stack([resize(self._whole(item), size, self.needs.crop.filter) for item in items])

    def _portion(self, incoming: PixelBatch, size: Size) -> VerificationBatch:
        if not self.sizes:
            return VerificationBatch(incoming, incoming)
        plan = self.needs.crop.plan(size, self.needs.image_size)
        return VerificationBatch(incoming, np.stack([crop_and_resize(picture, size, plan) for picture in incoming]))

    def _whole(self, item: Item) -> Pixels:
        samples = self.album.samples
        return decode(samples.read(item), samples.store.address(item.name), self.needs.decoding, FULL)


log = logging.getLogger("vitral")
BATCH_SIZES = (1, 3, CHUNK)
ROUNDING = 1e-9  # of shares
SMALL_BATCH_IMAGES = 33  # images that are asked about in batches other than the largest


class Tolerance(NamedTuple):
    """How far from its model an export may be."""

    precision: str
    difference: float  # of any number of an answer
    agreement: float  # share of images of the same top-1
    loss: float  # of accuracy


FLOAT32 = Tolerance("float32", difference=1e-4, agreement=1.0, loss=0.0)
INT8 = Tolerance("int8", difference=inf, agreement=0.99, loss=0.005)


@dataclass(frozen=True)
class ReferenceEngine:
    """The model itself as an engine: what every other one is held to."""

    loaded: LoadedModel

    @torch.no_grad()
    def run(self, pixels: PixelBatch) -> FloatArray:
        model, bundle = self.loaded
        images = bundle.preprocessing.normalize.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2))  # (B, C, H, W)
        return (model(images) if bundle.task == "classify" else model.pooled(images)).numpy()  # (B, K)


class ReferenceOutputs(NamedTuple):
    """The model's own answers, which an export is to give too."""

    answers: FloatArray  # (N, K)
    labels: NDArray[np.int64]  # (N,), or (0,) where nobody knows them
    classes: bool  # whether the largest number of an answer names a class


def reference_outputs(
    loaded: LoadedModel, portions: Iterable[VerificationBatch], labels: Sequence[int]
) -> ReferenceOutputs:
    """The answers of the model; refused where they are all alike, by which nothing could be told."""
    engine = ReferenceEngine(loaded)
    log.info("asking the model, and then the export, about the images that judge")
    answers = np.concatenate([engine.run(portion.seen) for portion in portions])
    if len(answers) > 1 and np.ptp(answers, axis=0).max() == 0:
        message = "the model gives every image the same answer, so an export of it could not be told from a broken one"
        raise VitralError(message, code="export.constant_output", hint="train it first, or give other images: --data")
    classes = loaded.bundle.task == "classify"
    return ReferenceOutputs(answers, np.array(labels if classes else (), dtype=np.int64), classes)


def verify(
    export: Engine,
    truth: ReferenceOutputs,
    portions: Iterable[VerificationBatch],
    bound: Tolerance,
    images: str,
    batches: Sequence[int],
) -> Certificate:
    """How the answers of an export compare; in batches other than the largest a few images are enough."""
    found: dict[int, list[FloatArray]] = {batch: [] for batch in batches}
    asked = dict.fromkeys(batches, 0)
    for portion in portions:
        for batch in batches:
            wanted = len(portion.incoming) if batch == max(batches) else SMALL_BATCH_IMAGES - asked[batch]
            if wanted:
                found[batch].append(run_in_batches(export, portion.incoming[:wanted], batch))
                asked[batch] += len(found[batch][-1])
    whole = {batch: np.concatenate(answers) for batch, answers in found.items()}
    compared = tuple(compare(answers, truth, batch) for batch, answers in whole.items())
    return Certificate(
        bound=describe_tolerance(bound, truth.classes),
        images=images,
        comparisons=compared,
        accuracy=_accuracy(whole[max(batches)], truth),
    )


def compare(answers: FloatArray, truth: ReferenceOutputs, batch: int) -> Comparison:
    """The answers to the first of the images, beside the model's own."""
    own = reference.outputs[: len(answers)]
    same = float((answers.argmax(axis=1) == own.argmax(axis=1)).mean())
    difference = float(np.abs(answers - own).max())
    if not np.isfinite(difference):
        message = "the export gives answers that are infinite or not numbers"
        raise VitralError(
            message,
            code="export.not_finite",
            hint="take float32, or weights from before training went astray; nothing was kept",
        )
    agreement = same if truth.classes else None
    return Comparison(batch=batch, images=len(answers), difference=difference, agreement=agreement)


def find_violations(certificate: Certificate, bound: Tolerance) -> list[str]:
    """What keeps an export from getting its name, a sentence each."""
    accuracy, most = certificate.accuracy, max(each.batch for each in certificate.comparisons)
    found = []
    if certificate.difference > bound.difference:
        found.append(f"answers differ by {certificate.difference:.1e}, at most {bound.difference:.0e} is allowed")
    for each in certificate.comparisons:
        allowed = (1 - bound.agreement) * each.images
        # One in a hundred of a few images is one: of those that are asked about in the smaller batches.
        if each.changed > (allowed + ROUNDING if each.batch == most else ceil(allowed)):
            found.append(
                f"in batches of {each.batch} {each.agreement:.2%} of {each.images} images have the same top-1, "
                f"at least {bound.agreement:.0%} must"
            )
    if accuracy is not None and accuracy.model - accuracy.export > bound.loss + ROUNDING:
        lost = 100 * (accuracy.model - accuracy.export)
        found.append(f"{lost:.2f} points of accuracy are lost, at most {100 * bound.loss:g} may be")
    return found


def describe_tolerance(bound: Tolerance, classes: bool) -> str:
    """The bound as a certificate states it."""
    parts = [] if bound.difference == inf else [f"numbers within {bound.difference:.0e}"]
    if classes:
        parts.append(f"the same top-1 for {bound.agreement:.0%}")
        parts.append(f"at most {100 * bound.loss:g} points of accuracy lost")
    return f"{bound.precision}: {', '.join(parts)}"


def _accuracy(answers: FloatArray, truth: ReferenceOutputs) -> Accuracy | None:
    if not len(truth.labels):
        return None
    count = len(truth.labels)  # those in mixed colors come after, and are of no class
    model, export = (float((each[:count].argmax(axis=1) == truth.labels).mean()) for each in (reference.outputs, answers))
    return Accuracy(model=model, export=export)
