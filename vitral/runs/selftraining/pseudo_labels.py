"""Pseudo-labels: the classes that a teacher predicts for unlabeled images, those it is confident of, balanced."""

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from vitral.core.activation import probabilities
from vitral.core.config import Config
from vitral.core.errors import DataError
from vitral.data.samples import Samples
from vitral.evaluation.subject import Progress, no_progress
from vitral.html.page import plural
from vitral.inference.inputs import ImageRef
from vitral.inference.predictor import PredictionStream, Predictor

log = logging.getLogger("vitral")
BATCH = 32


class PseudoLabeling(Config):
    """Which predictions become labels."""

    threshold: float = Field(default=0.9, ge=0, le=1)  # least confidence
    # At most so many images of a class, the most confident first; `mean` is the mean number over the classes.
    per_class: Annotated[int, Field(ge=1)] | Literal["mean", "all"] = "mean"
    skip_bad: bool = False  # leave out images that cannot be read


class PseudoLabel(NamedTuple):
    """A prediction for an image."""

    image: ImageRef
    label: str
    confidence: float


def predict_labels(
    predictor: Predictor, images: Sequence[ImageRef], skip_bad: bool, progress: Progress = no_progress
) -> list[PseudoLabel]:
    """The most probable class of each image that can be read, in order; others are an error, or skipped."""
    bundle = predictor.bundle
    found: list[PseudoLabel] = []
    bad = place = 0
    with progress("pseudo-labels", len(images)) as advance:
        for batch, logits in PredictionStream(predictor, images, BATCH).outputs("logits"):
            readable = [place + index for index in range(len(batch.names)) if index not in batch.failed]
            for error in batch.failed.values():
                log.warning(f"{'skipped: ' if skip_bad else ''}{error}")
            bad, place = bad + len(batch.failed), place + len(batch.names)
            chances = probabilities(logits.astype(np.float64), bundle.activation) if readable else logits  # (B, K)
            for index, row in zip(readable, chances, strict=False):
                best = int(row.argmax())
                found.append(PseudoLabel(images[index], bundle.classes[best], float(row[best])))
            advance(len(batch.names))
    if bad and not skip_bad:
        message = f"{bad:,} of {plural(len(images), 'image')} cannot be read"
        hint = "see above for each; repair or remove them, or skip them: --skip-bad (skip_bad=True in Python)"
        raise DataError(message, code="data.bad_files", hint=hint)
    return found


def choose(labels: Sequence[PseudoLabel], labeling: PseudoLabeling, classes: int) -> list[PseudoLabel]:
    """The labels that are confident enough, at most so many of a class; in the order of the images."""
    confident = [each for each in labels if each.confidence >= labeling.threshold]
    if not confident:
        top = max((each.confidence for each in labels), default=0.0)
        message = f"the teacher is at most {top:.3f} confident, and no image reaches {labeling.threshold:g}"
        raise DataError(message, code="data.no_pseudo_labels", where="threshold", hint="lower --threshold")
    most = labeling.per_class
    if most == "mean":
        most = -(-len(confident) // classes)
    if most == "all":
        return confident
    order = sorted(range(len(confident)), key=lambda index: (-confident[index].confidence, index))
    counts: Counter[str] = Counter()
    kept = set()
    for index in order:
        if counts[confident[index].label] < most:
            counts[confident[index].label] += 1
            kept.add(index)
    return [each for index, each in enumerate(confident) if index in kept]


def without_labeled(images: Sequence[ImageRef], samples: Samples) -> list[ImageRef]:
    """The images that are no copies of a labeled image, nor of one before: validation images must stay unseen."""
    seen = {hashlib.sha256(samples.read(item)).digest() for item in samples.items}
    kept = []
    for image in images:
        try:
            digest = hashlib.sha256(image.source.read()).digest()
        except DataError:  # reported when it is to be labeled
            kept.append(image)
            continue
        if digest not in seen:
            seen.add(digest)
            kept.append(image)
    if left := len(images) - len(kept):
        log.info(f"left out, copies of labeled images or of each other: {plural(left, 'unlabeled image')}")
    if not kept:
        message, hint = "every unlabeled image is a copy of a labeled one", "give other images"
        raise DataError(message, code="data.empty", where="UNLABELED", hint=hint)
    return kept
