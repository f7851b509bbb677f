"""A head that is fitted to frozen features, before they are tuned.  B images of N, D width, K classes."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.model.contract import Model
from vitral.train.feed import Portion


class Fitted(NamedTuple):
    """A linear map from features to logits."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)


Fit = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # features (N, D), labels (N,) to weight (K, D), bias (K,)


class Look(NamedTuple):
    """What a run hands in for a look at its training images before the first step."""

    batches: Callable[[], Iterable[Sequence[Portion]]]  # each image once, seen as in evaluation
    gather: Callable[[Tensor], Tensor]  # the rows of all processes, those of the first one first
    first: bool  # whether this process is that one
    fit: Fit


def seen(model: Model, look: Look) -> tuple[Tensor, Tensor]:
    """The vectors that the head reads (N, D), of all training images, and their labels (N,), on the CPU."""
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = [
                (model.pooled(portion.images).float(), portion.labels)  # (B, D), (B,)
                for portions in look.batches()
                for portion in portions
            ]
    finally:
        model.train(before)
    features, labels = (look.gather(torch.cat(rows)).cpu() for rows in zip(*found, strict=True))
    return features, labels


def fitted(features: Tensor, labels: Tensor, look: Look) -> Fitted:
    """What the first process fits, for all of them: the others add no rows to it."""
    weight, bias = look.fit(features, labels) if look.first else (features[:0], features[:0, 0])  # (K, D), (K,)
    return Fitted(look.gather(weight), look.gather(bias))
