"""The probability of one class in many pictures, a batch at a time.  B pictures of a batch, M in all, K classes.

What a user chooses to be told: a class by its name, layers by their numbers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from vitral.core.activation import probabilities
from vitral.core.errors import ConfigError, format_choices
from vitral.explanation.explanation import Array
from vitral.models.base import Grid, Model, check_images
from vitral.models.head import NoHead

MAX_SUGGESTIONS = 5  # names that are suggested


def find_class(wanted: str, classes: Sequence[str]) -> int:
    """The label of the class of this name; a number that is no name is a label by itself."""
    if not classes:
        message = "this model names no classes"
        raise ConfigError(message, code="config.unsupported", where="class", hint="leave it out")
    labels = [label for label, name in enumerate(classes) if name == wanted]
    if len(labels) > 1:
        message = f"{len(labels)} classes are called {wanted!r}"
        hint = f"give the number of one: {format_choices(labels)}"
        raise ConfigError(message, code="config.ambiguous_name", where="class", hint=hint)
    if not labels and re.fullmatch("[0-9]+", wanted) and int(wanted) < len(classes):
        labels = [int(wanted)]
    if not labels:
        message = f"none of the {len(classes):,} classes is called {wanted!r}"
        raise ConfigError(message, code="config.unknown_name", where="class", hint=suggest_classes(wanted, classes))
    return labels[0]


def suggest_classes(wanted: str, classes: Sequence[str]) -> str:
    """`did you mean 'tabby cat' or 'tiger cat'?`: names that the word is part of, or that are spelt alike."""
    word = wanted.lower()
    by_name = {name.lower(): name for name in classes}
    near = [name for name in by_name if word in name][:MAX_SUGGESTIONS]
    near = near or get_close_matches(word, by_name, n=MAX_SUGGESTIONS, cutoff=0.5)
    if near:
        return f"did you mean {format_choices(repr(by_name[name]) for name in near)}?"
    more = f" and {len(classes) - MAX_SUGGESTIONS:,} more" if len(classes) > MAX_SUGGESTIONS else ""
    return f"there are {', '.join(map(repr, classes[:MAX_SUGGESTIONS]))}{more}"


def parse_layers(wanted: str | Sequence[int], depth: int) -> tuple[int, ...]:
    """Numbers of layers, counted from 1, in order: of `1,6,12`, of `1-4,12`, of a list; all of them for nothing."""
    if not wanted:
        return tuple(range(1, depth + 1))
    if not depth:
        message = "this model has no layers of tokens to choose from"
        raise ConfigError(message, code="config.unsupported", where="layers", hint="leave it out")
    found: set[int] = set()
    for part in wanted.split(",") if isinstance(wanted, str) else map(str, wanted):
        ends = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= depth:
            message = f"expected numbers from 1 to {depth}, the layers of this model, got {part.strip()!r}"
            hint = "give them as in 1,6,12 or 1-4,12, or leave it out"
            raise ConfigError(message, code="config.out_of_range", where="layers", hint=hint)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


MAX_PIXELS = 16 * 224 * 224  # in a batch: enough to keep the cores busy, little memory beside the weights
MAX_BATCH = 256


def no_progress(count: int) -> None:
    """Progress for nobody."""


@torch.no_grad()
def class_probabilities(
    model: Model, pictures: Iterable[Tensor], target: int, advance: Callable[[int], None] = no_progress
) -> Array:
    """The probability of a class in each picture (C, H, W), as (M,).

    Pictures are taken as they are needed, so that a generator of thousands costs the memory of a batch. `advance` hears
    how many more are done.
    """
    check_class(model, target)
    found = [np.empty(0, dtype=np.float32)]
    with eval_mode(model):
        for batch in batch_images(pictures):
            chances = probabilities(model(batch).double(), model.activation)[:, target]  # (B,)
            found.append(chances.float().cpu().numpy())
            advance(len(batch))
    return np.concatenate(found)


def single_image(model: Model, image: Tensor) -> tuple[Tensor, Grid]:
    """The one picture (C, H, W) in a batch of it, and the grid of patches that the model sees in it."""
    size = check_images(image, model.config.channels)
    if len(image) != 1:
        message, hint = f"expected one, got {len(image)}", "give them one by one: images[:1]"
        raise ConfigError(message, code="config.wrong_count", where="images", hint=hint)
    return image[0], model.config.layout(size).grid


def batch_images(pictures: Iterable[Tensor]) -> Iterator[Tensor]:
    """Pictures of one size (C, H, W) as batches (B, C, H, W) of a bounded number of pixels."""
    coming = iter(pictures)
    for first in coming:
        count = max(1, min(MAX_BATCH, MAX_PIXELS // first[0].numel()))
        yield torch.stack([first, *islice(coming, count - 1)])


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
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
    known = 0 if isinstance(head, NoHead) else head.num_classes
    if not known:
        message = "this model names no classes"
        raise ConfigError(message, code="config.unsupported", where="target", hint="give a model with a head")
    if not 0 <= target < known:
        message = f"expected a class from 0 to {known - 1}, got {target}"
        raise ConfigError(message, code="config.out_of_range", where="target")
