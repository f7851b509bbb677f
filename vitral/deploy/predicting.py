"""Prediction: images in, what a model makes of them out, a batch at a time.  B images, K numbers."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from vitral.deploy.engine import Bytes, Numbers
from vitral.deploy.outputs import Sink
from vitral.deploy.reading import Batch
from vitral.errors import WeightsError


class Count(NamedTuple):
    """How many images were answered, and how many could not be read."""

    answered: int
    failed: int


def predict(
    see: Callable[[Bytes], Numbers], batches: Iterable[Batch], sink: Sink, hear: Callable[[Batch], None]
) -> Count:
    """Have the sink take what `see` makes of each batch; `hear` is told of a batch before it is answered."""
    answered = failed = 0
    for batch in batches:
        hear(batch)
        numbers = see(batch.pixels) if len(batch.pixels) else np.zeros((0, 1), dtype=np.float32)  # (B, K)
        _refuse_strange(batch, numbers)
        sink.write(batch, numbers)
        answered, failed = answered + len(batch.pixels), failed + len(batch.failed)
    return Count(answered, failed)


def _refuse_strange(batch: Batch, numbers: Numbers) -> None:
    """An answer that is no number is the fault of the weights, and no file could hold it."""
    strange = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(strange):
        what = "what the model makes of it is infinite or not a number"
        remedy = "take weights from before training went astray"
        raise WeightsError(what, code="weights.not_finite", where=batch.good[strange[0]], remedy=remedy)
