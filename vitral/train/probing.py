"""A head that is fitted to frozen features, before they are tuned.  B images of N, D width, K classes."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.data.transforms.mix import one_hot
from vitral.model.contract import Model
from vitral.tasks.loss import LossConfig
from vitral.train.feed import Portion

PENALTY = 1.0  # on half the squared weights, against the sum of the losses: C = 1 of scikit-learn
MOST_ROUNDS = 1_000  # of L-BFGS
FLATTEST = 1e-3  # of the mean deviation: what varies less counts as varying so much, or it would be blown up


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


def fit_head(features: Tensor, labels: Tensor, classes: int, loss: LossConfig) -> Fitted:
    """The regularised regression of the labels on the features, by L-BFGS in 64 bits; nothing in it is drawn.

    Features are first brought to mean 0 and deviation 1, so that the penalty means the same for any model.
    """
    x = features.double()  # (N, D)
    mean, deviation = x.mean(dim=0), x.std(dim=0, correction=0)  # each (D,)
    deviation = deviation.clamp_min(max(FLATTEST * deviation.mean().item(), torch.finfo(torch.float64).tiny))
    x = (x - mean) / deviation
    targets = one_hot(labels, classes).double()  # (N, K)
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)  # (K, D)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)  # (K,)
    descent = torch.optim.LBFGS(
        [weight, bias], max_iter=MOST_ROUNDS, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def cost() -> float:
        descent.zero_grad()
        losses = loss.losses(x @ weight.mT + bias, targets)  # (N,)
        total = (losses.sum() + PENALTY / 2 * weight.square().sum()) / len(x)
        total.backward()
        return total.item()

    descent.step(cost)
    weight = weight.detach() / deviation  # for features as they are
    return Fitted(weight.float(), (bias.detach() - weight @ mean).float())
