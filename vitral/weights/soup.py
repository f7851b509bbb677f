"""Averages of weights: model soups (arXiv 2203.05482) and WiSE-FT (arXiv 2109.01903).

Averages are computed in float64 and returned in float32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.weights.bundle import Bundle

Weights = Mapping[str, Tensor]

COMPARED = ("model", "task", "classes", "preprocessing", "activation")  # fields of a bundle that must be equal
# Settings of training alone: models that were fine-tuned with different ones are the usual ingredients of a soup.
TRAINING_ONLY = ("model.init", "model.memory")
TRAINING_RATES = ("dropout", "attention_dropout", "drop_path_rate", "drop_path_mode")
MISSING = "absent"


def mean_weights(ingredients: Sequence[Weights]) -> dict[str, Tensor]:
    """The uniform soup: the mean of each tensor."""
    return {
        name: (sum_tensors([weights[name] for weights in ingredients]) / len(ingredients)).float()
        for name in ingredients[0]
    }


def interpolate_weights(first: Weights, second: Weights, alpha: float) -> dict[str, Tensor]:
    """(1 - alpha) first + alpha second; at 0 and 1 the very bits of one of them."""
    if alpha in (0, 1):  # a sum with 0 would change the sign of -0
        return {name: tensor.detach().to("cpu", torch.float32) for name, tensor in (second if alpha else first).items()}
    return {name: sum_tensors([first[name], second[name]], (1 - alpha, alpha)).float() for name in first}


def sum_tensors(tensors: Sequence[Tensor], factors: Sequence[float] = ()) -> Tensor:
    """The weighted sum in float64, on the CPU; without factors, each is 1."""
    total, *others = (
        tensor.detach().to("cpu", torch.float64) * factor
        for tensor, factor in zip(tensors, factors or [1.0] * len(tensors), strict=True)
    )
    for each in others:
        total += each
    return total


def greedy_soup(accuracies: Sequence[float], measure: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    """The indices of the ingredients: added from the most accurate on, each only if the accuracy does not drop.

    `measure` gives the accuracy of the mean of the ingredients with these indices. The soup is never less accurate
    than the best ingredient.
    """
    first, *others = sorted(range(len(accuracies)), key=lambda index: -accuracies[index])
    chosen: tuple[int, ...] = (first,)
    best = accuracies[first]
    for index in others:
        accuracy = measure((*chosen, index))
        if accuracy >= best:
            chosen, best = (*chosen, index), accuracy
    return chosen


class Difference(NamedTuple):
    """A field in which two bundles differ, and its values."""

    field: str
    first: object
    second: object

    @property
    def matters(self) -> bool:
        """Whether it changes outputs: dropout and initialization do not."""
        if any(self.field == path or self.field.startswith(f"{path}.") for path in TRAINING_ONLY):
            return False
        return not (self.field.startswith("model.") and self.field.rpartition(".")[2] in TRAINING_RATES)


def find_differences(first: Bundle, second: Bundle) -> list[Difference]:
    """The fields in which the models of two bundles differ."""
    ours, theirs = (bundle.model_dump(mode="json", include=set(COMPARED)) for bundle in (first, second))
    return [found for name in COMPARED for found in _compare(name, ours[name], theirs[name])]


def _compare(path: str, first: Any, second: Any) -> Iterator[Difference]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in {**first, **second}:
            yield from _compare(f"{path}.{name}", first.get(name, MISSING), second.get(name, MISSING))
    elif first != second:
        yield Difference(path, first, second)


def check_mergeable(names: Sequence[str], bundles: Sequence[Bundle]) -> list[str]:
    """Raise if models differ in architecture, classes or preprocessing; else the notes on what differs."""
    notes = []
    for other, bundle in zip(names[1:], bundles[1:], strict=True):
        for found in find_differences(bundles[0], bundle):
            values = f"{found.field} is {_short(found.first)} in {names[0]} and {_short(found.second)} in {other}"
            if found.matters:
                hint = "merge models that were fine-tuned from the same weights, for the same classes and images"
                raise WeightsError(values, code="weights.merge_mismatch", where=other, hint=hint)
            notes.append(f"{values}; it matters only in training, and the first is kept")
    return notes


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
