"""The probability of one class in many images, in batches; and the choice of a class and of layers.

B images of a batch, M in all, K classes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from vitral.models.hooks import eval_mode

MAX_SUGGESTIONS = 5  # of class names


def find_class(name: str, classes: Sequence[str]) -> int:
    """The label of the class of this name; a number that is not a name is taken as the label."""
    if not classes:
        message = "this model has no classes"
        raise ConfigError(message, code="config.unsupported", where="class", hint="omit it")
    labels = [label for label, each in enumerate(classes) if each == name]
    if len(labels) > 1:
        message = f"{len(labels)} classes are named {name!r}"
        hint = f"pass the number of one: {format_choices(labels)}"
        raise ConfigError(message, code="config.ambiguous_name", where="class", hint=hint)
    if not labels and re.fullmatch("[0-9]+", name) and int(name) < len(classes):
        labels = [int(name)]
    if not labels:
        message = f"none of the {len(classes):,} classes is named {name!r}"
        raise ConfigError(message, code="config.unknown_name", where="class", hint=suggest_classes(name, classes))
    return labels[0]


def suggest_classes(name: str, classes: Sequence[str]) -> str:
    """`did you mean 'tabby cat' or 'tiger cat'?`: classes that contain the name, or are spelled like it."""
    word = name.lower()
    by_name = {each.lower(): each for each in classes}
    near = [each for each in by_name if word in each][:MAX_SUGGESTIONS]
    near = near or get_close_matches(word, by_name, n=MAX_SUGGESTIONS, cutoff=0.5)
    if near:
        return f"did you mean {format_choices(repr(by_name[each]) for each in near)}?"
    more = f" and {len(classes) - MAX_SUGGESTIONS:,} more" if len(classes) > MAX_SUGGESTIONS else ""
    return f"there are {', '.join(map(repr, classes[:MAX_SUGGESTIONS]))}{more}"


def parse_layers(layers: str | Sequence[int], depth: int) -> tuple[int, ...]:
    """Sorted layer numbers, counting from 1, of `1,6,12`, `1-4,12` or a list; all layers for an empty one."""
    if not layers:
        return tuple(range(1, depth + 1))
    if not depth:
        message = "this model has no layers of tokens"
        raise ConfigError(message, code="config.unsupported", where="layers", hint="omit it")
    numbers: set[int] = set()
    for part in layers.split(",") if isinstance(layers, str) else map(str, layers):
        ends = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= depth:
            message = f"expected numbers from 1 to {depth}, the layers of this model, got {part.strip()!r}"
            hint = "pass numbers such as 1,6,12 or 1-4,12, or omit it"
            raise ConfigError(message, code="config.out_of_range", where="layers", hint=hint)
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


MAX_PIXELS = 16 * 224 * 224  # in a batch: keeps the cores busy at little memory
MAX_BATCH = 256


def no_progress(count: int) -> None:
    """Progress that is not shown."""


@torch.no_grad()
def class_probabilities(
    model: Model, pictures: Iterable[Tensor], target: int, advance: Callable[[int], None] = no_progress
) -> Array:
    """The probability of a class in each image (C, H, W), as (M,).

    A generator is consumed batch by batch. `advance` is called with the number of further images done.
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
    """The one image (C, H, W) of a batch, and its grid of patches."""
    size = check_images(image, model.config.channels)
    if len(image) != 1:
        message, hint = f"expected one, got {len(image)}", "pass one at a time: images[:1]"
        raise ConfigError(message, code="config.wrong_count", where="images", hint=hint)
    return image[0], model.config.layout(size).grid


def batch_images(pictures: Iterable[Tensor]) -> Iterator[Tensor]:
    """Images of one size (C, H, W) in batches (B, C, H, W) of a bounded number of pixels."""
    coming = iter(pictures)
    for first in coming:
        count = max(1, min(MAX_BATCH, MAX_PIXELS // first[0].numel()))
        yield torch.stack([first, *islice(coming, count - 1)])


def check_class(model: Model, target: int) -> None:
    """Raise if the model does not have this class."""
    head = model.config.head
    known = 0 if isinstance(head, NoHead) else head.num_classes
    if not known:
        message = "this model has no classes"
        raise ConfigError(message, code="config.unsupported", where="target", hint="pass a model with a head")
    if not 0 <= target < known:
        message = f"expected a class from 0 to {known - 1}, got {target}"
        raise ConfigError(message, code="config.out_of_range", where="target")
