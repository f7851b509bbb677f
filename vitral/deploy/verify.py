"""The judgement of an export: it answers real images as its model does, or it gets no name.

N images, K numbers of an answer.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.deploy.certificate import Accuracy, Certificate, Comparison
from vitral.deploy.engine import Bytes, Engine, Numbers, in_batches
from vitral.deploy.pictures import PORTION, Portion
from vitral.errors import VitralError
from vitral.weights.load import Loaded

log = logging.getLogger("vitral")
BATCHES = (1, 3, PORTION)
ROUNDING = 1e-9  # of shares
FEW = 33  # images that are asked about in batches other than the largest


class Bound(NamedTuple):
    """How far from its model an export may be."""

    precision: str
    difference: float  # of any number of an answer
    agreement: float  # share of images of the same top-1
    loss: float  # of accuracy


FLOAT32 = Bound("float32", difference=1e-4, agreement=1.0, loss=0.0)
INT8 = Bound("int8", difference=inf, agreement=0.99, loss=0.005)


@dataclass(frozen=True)
class Original:
    """The model itself as an engine: what every other one is held to."""

    loaded: Loaded

    @torch.no_grad()
    def run(self, pixels: Bytes) -> Numbers:
        model, bundle = self.loaded
        images = bundle.preprocessing.scaling.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2))  # (B, C, H, W)
        return (model(images) if bundle.task == "classify" else model.pooled(images)).numpy()  # (B, K)


class Expected(NamedTuple):
    """The model's own answers, which an export is to give too."""

    answers: Numbers  # (N, K)
    labels: NDArray[np.int64]  # (N,), or (0,) where nobody knows them
    classes: bool  # whether the largest number of an answer names a class


def expected(loaded: Loaded, portions: Iterable[Portion], labels: Sequence[int]) -> Expected:
    """The answers of the model; refused where they are all alike, by which nothing could be told."""
    engine = Original(loaded)
    log.info("asking the model, and then the export, about the images that judge")
    answers = np.concatenate([engine.run(portion.seen) for portion in portions])
    if len(answers) > 1 and np.ptp(answers, axis=0).max() == 0:
        what = "the model gives every image the same answer, so an export of it could not be told from a broken one"
        raise VitralError(what, code="export.constant_output", remedy="train it first, or give other images: --data")
    classes = loaded.bundle.task == "classify"
    return Expected(answers, np.array(labels if classes else (), dtype=np.int64), classes)


def judge(
    export: Engine, truth: Expected, portions: Iterable[Portion], bound: Bound, images: str, batches: Sequence[int]
) -> Certificate:
    """How the answers of an export compare; in batches other than the largest a few images are enough."""
    found: dict[int, list[Numbers]] = {batch: [] for batch in batches}
    asked = dict.fromkeys(batches, 0)
    for portion in portions:
        for batch in batches:
            wanted = len(portion.incoming) if batch == max(batches) else FEW - asked[batch]
            if wanted:
                found[batch].append(in_batches(export, portion.incoming[:wanted], batch))
                asked[batch] += len(found[batch][-1])
    whole = {batch: np.concatenate(answers) for batch, answers in found.items()}
    compared = tuple(compare(answers, truth, batch) for batch, answers in whole.items())
    return Certificate(
        bound=words(bound, truth.classes),
        images=images,
        comparisons=compared,
        accuracy=_accuracy(whole[max(batches)], truth),
    )


def compare(answers: Numbers, truth: Expected, batch: int) -> Comparison:
    """The answers to the first of the images, beside the model's own."""
    own = truth.answers[: len(answers)]
    same = float((answers.argmax(axis=1) == own.argmax(axis=1)).mean())
    difference = float(np.abs(answers - own).max())
    if not np.isfinite(difference):
        what = "the export gives answers that are infinite or not numbers"
        raise VitralError(
            what,
            code="export.not_finite",
            remedy="take float32, or weights from before training went astray; nothing was kept",
        )
    agreement = same if truth.classes else None
    return Comparison(batch=batch, images=len(answers), difference=difference, agreement=agreement)


def faults(certificate: Certificate, bound: Bound) -> list[str]:
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


def words(bound: Bound, classes: bool) -> str:
    """The bound as a certificate states it."""
    parts = [] if bound.difference == inf else [f"numbers within {bound.difference:.0e}"]
    if classes:
        parts.append(f"the same top-1 for {bound.agreement:.0%}")
        parts.append(f"at most {100 * bound.loss:g} points of accuracy lost")
    return f"{bound.precision}: {', '.join(parts)}"


def _accuracy(answers: Numbers, truth: Expected) -> Accuracy | None:
    if not len(truth.labels):
        return None
    count = len(truth.labels)  # those in mixed colours come after, and are of no class
    model, export = (float((each[:count].argmax(axis=1) == truth.labels).mean()) for each in (truth.answers, answers))
    return Accuracy(model=model, export=export)
