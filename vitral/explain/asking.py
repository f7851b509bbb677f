"""The probability of one class in many pictures, a batch at a time.  B pictures of a batch, M in all, K classes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from vitral.errors import ConfigError
from vitral.explain.explanation import Array
from vitral.model.contract import Model, check_images
from vitral.model.head import NoHead
from vitral.model.shapes import Grid

PIXELS = 16 * 224 * 224  # in a batch: enough to keep the cores busy, little memory beside the weights
LARGEST = 256


def silent(count: int) -> None:
    """Progress for nobody."""


@torch.no_grad()
def probabilities(
    model: Model, pictures: Iterable[Tensor], target: int, advance: Callable[[int], None] = silent
) -> Array:
    """The probability of a class, by softmax, in each picture (C, H, W), as (M,).

    Pictures are taken as they are needed, so that a generator of thousands costs the memory of a batch. `advance` hears
    how many more are done.
    """
    check_class(model, target)
    found = [np.empty(0, dtype=np.float32)]
    with resting(model):
        for batch in batches(pictures):
            chances = model(batch).double().softmax(dim=1)[:, target]  # (B,)
            found.append(chances.float().cpu().numpy())
            advance(len(batch))
    return np.concatenate(found)


def only(model: Model, image: Tensor) -> tuple[Tensor, Grid]:
    """The one picture (C, H, W) in a batch of it, and the grid of patches that the model sees in it."""
    size = check_images(image, model.config.channels)
    if len(image) != 1:
        what, remedy = f"expected one, got {len(image)}", "give them one by one: images[:1]"
        raise ConfigError(what, code="config.wrong_count", where="images", remedy=remedy)
    return image[0], model.config.layout(size).grid


def batches(pictures: Iterable[Tensor]) -> Iterator[Tensor]:
    """Pictures of one size (C, H, W) as batches (B, C, H, W) of a bounded number of pixels."""
    coming = iter(pictures)
    for first in coming:
        count = max(1, min(LARGEST, PIXELS // first[0].numel()))
        yield torch.stack([first, *islice(coming, count - 1)])


@contextmanager
def resting(model: Model) -> Iterator[None]:
    """Inside the `with` the model is without dropout; after it, in the mode that it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def check_class(model: Model, target: int) -> None:
    """Refuse to ask about a class that the model does not know."""
    head = model.config.head
    known = 0 if isinstance(head, NoHead) else head.classes
    if not known:
        what = "this model names no classes"
        raise ConfigError(what, code="config.unsupported", where="target", remedy="give a model with a head")
    if not 0 <= target < known:
        what = f"expected a class from 0 to {known - 1}, got {target}"
        raise ConfigError(what, code="config.out_of_range", where="target")
